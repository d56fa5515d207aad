"""Layers of a GPU stack other than products and pools: norms, sums and dropout, forward and backward.

A layer's input is (models, rows, channels). `GpuLayer` is any layer of a stack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...keyed import salted
from . import group_norm_kernels, pointwise_kernels
from .launch import PROGRAMS, ColumnSums, GraphLayer, StepTensors, blocks_of, cdiv, cover
from .pools import MaxPool, MeanPool, WindowPool
from .product import Product


@dataclass
class BatchNorm(GraphLayer):
    """Batch norm over the rows of each model."""

    weight: str
    bias: str
    running_mean: str
    running_var: str
    eps: float
    rate: float

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise by the batch's moments, and let the running statistics follow; or by these alone."""
        models, rows, c = x.shape
        br, bc, splits, chunk = blocks_of(rows, c, models)
        running_mean, running_var = tensors.statistics[self.running_mean], tensors.statistics[self.running_var]
        if tensors.fixed_norms:
            self._centre, self._scale = running_mean, (running_var + self.eps).rsqrt()
        else:
            parts = torch.empty(2, models, splits, c, device=x.device)
            pointwise_kernels._moments[cdiv(c, bc), splits, models](x, parts[0], parts[1], rows, chunk, c, br, bc)
            self._centre, self._scale = torch.empty(2, models, c, device=x.device)
            pointwise_kernels._moments_end[cdiv(c, 16), models](
                *(x, parts[0], parts[1], self._centre, self._scale, running_mean, running_var),
                *(rows, self.eps, self.rate, c, splits, cover(splits, 1, 4096), 16),
            )
        y = torch.empty_like(x)
        pointwise_kernels._normalise[cdiv(rows, br), cdiv(c, bc), models](
            *(x, x if added is None else added, y, self._centre, self._scale),
            *(tensors.weights[self.weight], tensors.weights[self.bias], rows, c, added is not None, self.relu, br, bc),
        )
        self._x = x
        return y

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Gradients of scale and shift into their blocks, and of the input."""
        assert tensors.gradients is not None
        models, rows, c = d.shape
        br, bc, splits, chunk = blocks_of(rows, c, models)
        parts = torch.empty(2, models, splits, c, device=d.device)
        pointwise_kernels._normalise_sums[cdiv(c, bc), splits, models](
            d, self._x, self._centre, self._scale, parts[0], parts[1], rows, chunk, c, br, bc
        )
        beta, gamma = tensors.gradients[self.bias], tensors.gradients[self.weight]
        torch.sum(parts[0], 1, out=beta)
        torch.sum(parts[1], 1, out=gamma)
        dx = torch.empty_like(d)
        below = ColumnSums(self.below, tensors, dx, br)
        pointwise_kernels._normalise_gradient[cdiv(rows, br), cdiv(c, bc), models](
            *(d, self._x, dx, self._centre, self._scale, tensors.weights[self.weight], beta, gamma),
            *(below.parts, rows, c, tensors.fixed_norms, self.mask, below.wanted, br, bc),
        )
        below.join()
        return dx


@dataclass
class GroupNorm(GraphLayer):
    """Group norm of each sample."""

    weight: str
    bias: str
    groups: int
    eps: float

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """Normalise by the moments of each sample's groups."""
        models, rows, c = x.shape
        y, batch = torch.empty_like(x), rows // self.pixels
        self._centre, self._scale = torch.empty(2, models, batch, c, device=x.device)
        grid, sizes = self._blocks(models * batch)
        group_norm_kernels._group_norm[grid](
            *(x, x if added is None else added, y, tensors.weights[self.weight], tensors.weights[self.bias]),
            *(self._centre, self._scale, batch, self.eps, *sizes[:4], added is not None, self.relu, *sizes[4:]),
        )
        self._x = x
        return y

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Gradients of scale and shift into their blocks, and of the input."""
        assert tensors.gradients is not None
        models, rows, c = d.shape
        dx, batch = torch.empty_like(d), rows // self.pixels
        parts = torch.empty(2, models, batch, c, device=d.device)
        grid, sizes = self._blocks(models * batch)
        group_norm_kernels._group_norm_gradient[grid](
            *(d, self._x, dx, tensors.weights[self.weight], self._centre, self._scale, parts[0], parts[1], batch),
            *(*sizes[:4], self.mask, *sizes[4:]),
        )
        torch.sum(parts[0], 1, out=tensors.gradients[self.bias])
        torch.sum(parts[1], 1, out=tensors.gradients[self.weight])
        return dx

    def _blocks(self, samples: int) -> tuple[tuple[int, int], tuple[int, ...]]:
        """The grid; pixels, channels, a group's channels, groups of a block, pixels and channels of a tile."""
        c, size = self.channels, self.channels // self.groups
        wide = 64
        while wide > 16 and samples * cdiv(c, wide) < PROGRAMS:  # smaller blocks, until there are enough
            wide //= 2
        held = min(self.groups, max(1, wide // size))
        bc = cover(held * size, 16, 1 << 30)
        bp = cover(self.pixels, 1, max(1, 4096 // bc))
        return (samples, cdiv(c, held * size)), (self.pixels, c, size, held, bp, bc)


@dataclass
class Sum(GraphLayer):
    """The sum of two values, or one value, and a ReLU. The gradient of each is that of the output."""

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """Act(x + added)."""
        return summed(x, added, relu=self.relu)

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The gradient that it is given."""
        return d


def summed(
    a: torch.Tensor, b: torch.Tensor | None = None, relu: bool = False, opened: torch.Tensor | None = None
) -> torch.Tensor:
    """Act(a + b), zero where `opened` is."""
    y, x = torch.empty_like(a), a if opened is None else opened
    pointwise_kernels._sum[(cdiv(a.numel(), 2048),)](
        a, a if b is None else b, x, y, a.numel(), b is not None, relu, opened is not None, 2048
    )
    return y


@dataclass
class Dropout(GraphLayer):
    """Dropout whose draws depend on a key per model and step. They are numbered as torch lays an image out."""

    p: float
    salt: int
    keys: torch.Tensor | None = None  # one per model, set before every step

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """Zero a random part of every model's batch and scale up the rest."""
        self._x = x
        return self._drop(x, False)

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The same part of the gradient."""
        return self._drop(d, self.mask)

    def _drop(self, x: torch.Tensor, mask: bool) -> torch.Tensor:
        y, count = torch.empty_like(x), x.shape[1] * x.shape[2]
        pointwise_kernels._dropout[cdiv(count, 1024), len(x)](
            *(x, self._x, y, self.keys, count, self.p, 1 / (1 - self.p), salted(self.salt)),
            *(self.pixels, self._x.shape[2], mask, 1024),
        )
        return y


GpuLayer = Product | BatchNorm | GroupNorm | MaxPool | WindowPool | MeanPool | Sum | Dropout
