"""As a state dict, for `module.load_state_dict(torch.load(path, weights_only=True))`."""

from __future__ import annotations

from pathlib import Path

import torch

from ..model import SparseModel
from ..wire.files import atomic

MEAN, COUNT = "running_mean", "num_batches_tracked"


def write_torch(path: Path, model: SparseModel) -> None:
    """Every tensor under its own name; batch norms get the counter that a strict load asks for."""
    state = {name: torch.from_numpy(array.copy()) for name, array in model.tensors().items()}
    norms = [name.removesuffix(MEAN) for name in state if name.endswith(MEAN)]
    state |= {f"{norm}{COUNT}": torch.zeros((), dtype=torch.int64) for norm in norms}
    with atomic(path) as file:
        torch.save(state, file)
