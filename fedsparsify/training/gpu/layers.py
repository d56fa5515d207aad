"""Layers of a GPU stack other than products: batch norm, pooling and dropout, forward and backward.

A layer's input is (models, rows, channels). `GpuLayer` is any layer of a stack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...keyed import salted
from . import pointwise_kernels
from .launch import ColumnSums, StepTensors, blocks_of, cdiv, cover
from .product import Product


@dataclass
class BatchNorm:
    """Batch norm over the rows of each model."""

    name: str
    channels: int
    eps: float
    rate: float
    relu: bool = False
    mask: bool = False
    below: str = ""

    def forward(self, x: torch.Tensor, tensors: StepTensors) -> torch.Tensor:
        """Normalise by the batch's moments, and let the running statistics follow."""
        models, rows, c = x.shape
        br, bc, splits, chunk = blocks_of(rows, c, models)
        parts = torch.empty(2, models, splits, c, device=x.device)
        pointwise_kernels._moments[cdiv(c, bc), splits, models](x, parts[0], parts[1], rows, chunk, c, br, bc)
        self._centre, self._scale = torch.empty(2, models, c, device=x.device)
        pointwise_kernels._moments_end[cdiv(c, 16), models](
            *(x, parts[0], parts[1], self._centre, self._scale),
            *(tensors.statistics[f"{self.name}.running_mean"], tensors.statistics[f"{self.name}.running_var"]),
            *(rows, self.eps, self.rate, c, splits, cover(splits, 1, 4096), 16),
        )
        y = torch.empty_like(x)
        gamma, beta = tensors.weights[f"{self.name}.weight"], tensors.weights[f"{self.name}.bias"]
        pointwise_kernels._normalise[cdiv(rows, br), cdiv(c, bc), models](
            x, y, self._centre, self._scale, gamma, beta, rows, c, self.relu, br, bc
        )
        self._x = x
        return y

    def backward(self, d: torch.Tensor, tensors: StepTensors, need: bool) -> torch.Tensor | None:
        """Gradients of scale and shift into their blocks, and of the input."""
        assert tensors.gradients is not None
        models, rows, c = d.shape
        br, bc, splits, chunk = blocks_of(rows, c, models)
        parts = torch.empty(2, models, splits, c, device=d.device)
        pointwise_kernels._normalise_sums[cdiv(c, bc), splits, models](
            d, self._x, self._centre, self._scale, parts[0], parts[1], rows, chunk, c, br, bc
        )
        beta, gamma = tensors.gradients[f"{self.name}.bias"], tensors.gradients[f"{self.name}.weight"]
        torch.sum(parts[0], 1, out=beta)
        torch.sum(parts[1], 1, out=gamma)
        dx = torch.empty_like(d)
        below = ColumnSums(self.below, tensors, dx, br)
        pointwise_kernels._normalise_gradient[cdiv(rows, br), cdiv(c, bc), models](
            *(d, self._x, dx, self._centre, self._scale, tensors.weights[f"{self.name}.weight"], beta, gamma),
            *(below.parts, rows, c, self.mask, below.wanted, br, bc),
        )
        below.join()
        return dx


@dataclass
class MaxPool:
    """The largest of every 2×2 pixels."""

    height: int
    width: int
    channels: int
    mask: bool = False
    below: str = ""
    relu = False

    def forward(self, x: torch.Tensor, tensors: StepTensors) -> torch.Tensor:
        """A quarter of the rows."""
        models, rows, c = x.shape
        y = x.new_empty(models, rows // 4, c)
        self._which = torch.empty_like(y, dtype=torch.int8)
        bc = cover(c, 16, 64)
        pointwise_kernels._pool[cdiv(y.shape[0] * y.shape[1], 32), cdiv(c, bc)](
            x, y, self._which, y.shape[0] * y.shape[1], self.height, self.width, c, 32, bc
        )
        self._y = y
        return y

    def backward(self, d: torch.Tensor, tensors: StepTensors, need: bool) -> torch.Tensor | None:
        """The gradient at the pixels that were largest."""
        models, rows, c = d.shape
        dx = d.new_empty(models, 4 * rows, c)
        bc = cover(c, 16, 64)
        below = ColumnSums(self.below, tensors, dx, 4 * 32)
        pointwise_kernels._pool_gradient[cdiv(rows, 32), cdiv(c, bc), models](
            *(d, self._y, self._which, dx, below.parts, rows, self.height, self.width, c),
            *(self.mask, below.wanted, 32, bc),
        )
        below.join()
        return dx


@dataclass
class Dropout:
    """Dropout whose draws depend on a key per model and step."""

    p: float
    salt: int
    pixels: int  # of a sample: draws are numbered as torch lays an image out, channel by channel
    mask: bool = False
    relu = False
    keys: torch.Tensor | None = None  # one per model, set before every step

    def forward(self, x: torch.Tensor, tensors: StepTensors) -> torch.Tensor:
        """Zero a random part of every model's batch and scale up the rest."""
        self._x = x
        return self._drop(x, False)

    def backward(self, d: torch.Tensor, tensors: StepTensors, need: bool) -> torch.Tensor | None:
        """The same part of the gradient."""
        return self._drop(d, self.mask)

    def _drop(self, x: torch.Tensor, mask: bool) -> torch.Tensor:
        y, count = torch.empty_like(x), x.shape[1] * x.shape[2]
        pointwise_kernels._dropout[cdiv(count, 1024), len(x)](
            *(x, self._x, y, self.keys, count, self.p, 1 / (1 - self.p), salted(self.salt)),
            *(self.pixels, self._x.shape[2], mask, 1024),
        )
        return y


GpuLayer = Product | BatchNorm | MaxPool | Dropout
