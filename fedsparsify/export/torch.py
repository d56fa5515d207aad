"""As a state dict, for `module.load_state_dict(torch.load(path, weights_only=True))`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..model import SparseModel
from ..wire.files import atomic
from ..wire.state import whole_state


def write_torch(path: Path, model: SparseModel, facts: Mapping[str, object]) -> None:
    """Every entry that a strict load asks for."""
    state = {name: torch.from_numpy(array) for name, array in whole_state(model, facts).items()}
    with atomic(path) as file:
        torch.save(state, file)
