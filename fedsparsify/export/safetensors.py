"""As a safetensors file: dense tensors by name, and the facts as its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.numpy import save

from ..model import SparseModel
from ..wire.files import atomic
from ..wire.state import whole_state


def write_safetensors(path: Path, model: SparseModel, facts: Mapping[str, object]) -> None:
    """Every entry of the state dict under its own name."""
    said = {name: value for name, value in facts.items() if name != "state"}
    metadata = {name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items()}
    with atomic(path) as file:
        file.write(save(whole_state(model, facts), metadata))
