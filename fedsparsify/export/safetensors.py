"""As a safetensors file: dense tensors by name, and the facts as its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from ..model import SparseModel
from ..wire.files import atomic


def write_safetensors(path: Path, model: SparseModel, facts: Mapping[str, Any]) -> None:
    """Every tensor under its own name."""
    metadata = {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
    with atomic(path) as file:
        file.write(save({name: array.copy() for name, array in model.tensors().items()}, metadata))
