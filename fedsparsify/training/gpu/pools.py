"""Pools of a GPU stack, forward and backward. A layer's input is (models, rows, channels)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import pool_kernels
from .launch import ColumnSums, GraphLayer, StepTensors, cdiv, cover


@dataclass
class MaxPool(GraphLayer):
    """The largest of every 2×2 pixels."""

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """A quarter of the rows."""
        models, rows, c = x.shape
        y = x.new_empty(models, rows // 4, c)
        self._which = torch.empty_like(y, dtype=torch.int8)
        bc = cover(c, 16, 64)
        pool_kernels._pool[cdiv(y.shape[0] * y.shape[1], 32), cdiv(c, bc)](
            x, y, self._which, y.shape[0] * y.shape[1], *self.image[1:], c, 32, bc
        )
        self._y = y
        return y

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The gradient at the pixels that were largest."""
        models, rows, c = d.shape
        dx = d.new_empty(models, 4 * rows, c)
        bc = cover(c, 16, 64)
        below = ColumnSums(self.below, tensors, dx, 4 * 32)
        pool_kernels._pool_gradient[cdiv(rows, 32), cdiv(c, bc), models](
            *(d, self._y, self._which, dx, below.parts, rows, *self.image[1:], c),
            *(self.mask, below.wanted, 32, bc),
        )
        below.join()
        return dx


@dataclass
class WindowPool(GraphLayer):
    """The largest of square windows, which may overlap."""

    windows: tuple[int, int]  # rows and columns
    side: int
    stride: int
    padding: int

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """One row per window."""
        models, rows, c = x.shape
        y = x.new_empty(models, rows // self.pixels * self.windows[0] * self.windows[1], c)
        self._which = torch.empty_like(y, dtype=torch.int8)
        count, bc = models * y.shape[1], cover(c, 16, 64)
        pool_kernels._window_pool[cdiv(count, 32), cdiv(c, bc)](
            x, y, self._which, count, *self._sizes, c, self.side, self.stride, self.padding, 32, bc
        )
        self._y = y
        return y

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The gradient at the pixels that were largest."""
        models, rows, c = d.shape
        dx = d.new_empty(models, rows // (self.windows[0] * self.windows[1]) * self.pixels, c)
        count, bc = models * dx.shape[1], cover(c, 16, 64)
        pool_kernels._window_pool_gradient[cdiv(count, 32), cdiv(c, bc)](
            *(d, self._y, self._which, dx, count, *self._sizes, c),
            *(self.side, self.stride, self.padding, self.mask, 32, bc),
        )
        return dx

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (*self.image[1:], *self.windows)


@dataclass
class MeanPool(GraphLayer):
    """The mean of all pixels."""

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """One row per sample."""
        models, rows, c = x.shape
        y, bc = x.new_empty(models, rows // self.pixels, c), cover(c, 16, 64)
        pool_kernels._mean[models * y.shape[1], cdiv(c, bc)](x, y, self.pixels, c, cover(self.pixels, 1, 32), bc)
        self._x = x
        return y

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """An equal share of the gradient at every pixel."""
        models, rows, c = d.shape
        dx = d.new_empty(models, rows * self.pixels, c)
        count, bc = models * dx.shape[1], cover(c, 16, 64)
        pool_kernels._mean_gradient[cdiv(count, 32), cdiv(c, bc)](
            d, self._x, dx, count, self.pixels, c, self.mask, 32, bc
        )
        return dx
