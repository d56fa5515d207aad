"""Samples on their device, and calls of a network that takes one input or several."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from ..data.inputs import Arrays, Inputs

Batch: TypeAlias = "torch.Tensor | Inputs"


@dataclass(frozen=True)
class Samples:
    """Inputs and targets on the device where they are used."""

    x: Any  # (n, *shape), or `Inputs`
    y: torch.Tensor  # (n,) or (n, …)

    @classmethod
    def on(cls, device: torch.device, x: Arrays, y: np.ndarray) -> Samples:
        """Move arrays to a device once."""
        return cls(as_torch(x, device), torch.from_numpy(y).to(device))

    def at(self, rows: torch.Tensor) -> Batch:
        """The inputs of some samples; for one input by a call that is faster than an index."""
        return self.x.index_select(0, rows) if isinstance(self.x, torch.Tensor) else self.x[rows]

    @property
    def single(self) -> bool:
        """Whether the network takes one input of floats, as kernels and stacks need it."""
        return isinstance(self.x, torch.Tensor) and self.x.is_floating_point()


def as_torch(x: Arrays, device: torch.device | None = None) -> Any:
    """Arrays as tensors."""
    if isinstance(x, Inputs):
        return x.map(lambda part: torch.from_numpy(part).to(device))
    return torch.from_numpy(x).to(device)


def call(module: nn.Module, x: Any) -> Any:
    """What a network gives for a batch. Several inputs are spread over the arguments of `forward`, if it takes them."""
    if not isinstance(x, Inputs):
        return module(x)
    if x.names is None:
        return module(*x.parts) if _takes(module, *x.parts) else module(x.parts)
    named = dict(zip(x.names, x.parts, strict=True))
    return module(**named) if _takes(module, **named) else module(named)


def _takes(module: nn.Module, *given: Any, **named: Any) -> bool:
    try:
        inspect.signature(module.forward).bind(*given, **named)
    except (TypeError, ValueError):
        return False
    return True
