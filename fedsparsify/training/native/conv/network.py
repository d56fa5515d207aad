"""A pruned network as a torch module whose only parameter is the vector of survivors.

In: a network's plan and a mask. Out: a module that autograd, the loss and the optimiser treat as any other; and models
that hold the survivors alone. What trains it need not know of kernels or of masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ....keyed import KeyedDropout, salted
from ....model import Floats, Layout, SparseModel, TensorSpec
from ...fixed_norms import KernelNorms
from ...graph_layers import Dropout, Norm
from ...worker import SINGLE_SAMPLE
from .plan import Plan
from .program import Program
from .streams import Streams

LOW = 0xFFFFFFFF
Positions = NDArray[np.int64]


class _Run(torch.autograd.Function):
    """The kernels' forward and backward pass."""

    @staticmethod
    def forward(ctx: Any, survivors: torch.Tensor, x: torch.Tensor, network: SparseNetwork) -> torch.Tensor:
        ctx.network = network
        return network.run(survivors, x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        given = gradients[0].contiguous().numpy()
        return torch.from_numpy(ctx.network.program.backward(given)), None, None


class SparseNetwork(nn.Module):
    """The network under one mask. One thread uses it at a time."""

    statistics: torch.Tensor

    def __init__(self, plan: Plan, program: Program, streams: Streams, module: nn.Module) -> None:
        super().__init__()
        self.program = program
        self.survivors = nn.Parameter(torch.zeros(streams.positions.size))
        self.register_buffer("statistics", torch.zeros(program.statistics.size))
        norms = [layer for layer in plan.layers if isinstance(layer, Norm)]
        self._has_norms = bool(norms)
        self._norms_one_pixel = any(plan.shapes[layer.inputs[0]][1:] == (1, 1) for layer in norms)
        self.norms = KernelNorms()
        self._classes = plan.shapes[plan.output][0]
        self.dropouts = nn.ModuleDict()
        for layer in plan.layers:
            if isinstance(layer, Dropout):
                found = module.get_submodule(layer.module)
                assert isinstance(found, KeyedDropout)
                self.dropouts[layer.output] = KeyedDropout(found.p, found.salt)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits, in training."""
        logits: torch.Tensor = _Run.apply(self.survivors, x, self)  # type: ignore[no-untyped-call]
        return logits

    def run(self, survivors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The logits of a batch; moves the running statistics."""
        program, batch = self.program, len(x)
        if batch == 1 and self._norms_one_pixel and self.norms.training:
            raise ValueError(SINGLE_SAMPLE)  # as torch's batch norms do
        if self._has_norms:
            program.statistics[:] = self.statistics.numpy()
        draws = {name: _draw(child) for name, child in self.dropouts.items()}  # type: ignore[arg-type]
        program.forward(x.contiguous().numpy(), survivors.detach().numpy(), draws, not self.norms.training)
        if self._has_norms:
            self.statistics.copy_(torch.from_numpy(program.statistics))
        logits = program.logits[: batch * self._classes].copy()
        return torch.from_numpy(logits).view(batch, self._classes)


def _draw(dropout: KeyedDropout) -> tuple[int, int, float, float]:
    """The numbers from which a dropout's factors are drawn: two words of its key, its threshold and its factor."""
    if dropout.p == 1:
        return 0, 0, 1.0, 0.0
    key = int(dropout.key)
    inner = _mixed(key)
    outer = _mixed(inner + (key >> 31) + salted(dropout.salt))
    return inner, outer, float(np.float32(dropout.p)), float(np.float32(1 / (1 - dropout.p)))


def _mixed(x: int) -> int:
    """As `keyed._mix`."""
    x &= LOW
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & LOW
    return x ^ (x >> 16)


class SurvivorModels:
    """From whole models to models whose trainable values are those at some positions, in their order; and back."""

    def __init__(self, layout: Layout, positions: Positions, inner: Layout | None = None) -> None:
        self._layout, self._positions = layout, positions
        survivors = TensorSpec("survivors", (positions.size,))
        rest = TensorSpec("statistics", (max(1, layout.total - layout.trainable),))
        self.layout = inner or Layout((survivors,), (rest,))

    def pick(self, values: Floats) -> Floats:
        """The values at the positions, of a flat vector of trainable entries."""
        return np.ascontiguousarray(values[self._positions])

    def spread(self, values: Floats) -> Floats:
        """A flat vector of trainable entries, zero but at the positions."""
        whole = np.zeros(self._layout.trainable, np.float32)
        whole[self._positions] = values
        return whole

    def model(self, model: SparseModel) -> SparseModel:
        """The model of the positions, and the statistics."""
        weights, split = model.host_weights, self._layout.trainable
        inner = np.zeros(self.layout.total, np.float32)
        inner[: self._positions.size] = weights[self._positions]
        inner[self._positions.size :][: weights.size - split] = weights[split:]
        return SparseModel(self.layout, inner, model.host_mask[self._positions])

    def whole(self, model: SparseModel) -> Floats:
        """The weights of the whole model, statistics included."""
        split, weights = self._positions.size, model.host_weights
        whole = np.zeros(self._layout.total, np.float32)
        whole[self._positions] = weights[:split]
        whole[self._layout.trainable :] = weights[split:][: self._layout.total - self._layout.trainable]
        return whole
