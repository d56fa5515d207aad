"""Many models of one network, stacked: each tensor is one contiguous block (models, …).

In: models, as flat vectors. Out: named blocks of all models, and flat vectors again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from ...model import Layout, SparseModel

ALIGN = 16  # values; a block begins where a GPU can use its widest loads
Order = tuple[tuple[int, ...], tuple[int, ...]]  # a shape to view a tensor in, and a permutation of its axes


class Stack:
    """Weights, statistics and masks of several models, laid out for one computation.

    All trainable blocks lie in one flat buffer (as momentum and gradients do), so that a step of SGD on every model is
    a handful of operations on whole buffers. `orders` names the tensors whose axes lie in another order here.
    """

    def __init__(
        self, layout: Layout, models: int, device: torch.device, orders: Mapping[str, Order] | None = None
    ) -> None:
        self.layout, self.models, self.device = layout, models, device
        self._orders = {spec.name: (spec.shape, tuple(range(len(spec.shape)))) for spec in layout} | dict(orders or {})
        trainable = sum(self._aligned(spec.size) for spec in layout.tensors)
        self.weights = torch.zeros(trainable, device=device)
        self.pruned = torch.zeros(trainable, dtype=torch.bool, device=device)
        self.statistics = torch.zeros(sum(self._aligned(spec.size) for spec in layout.statistics), device=device)
        self.tensors = self.blocks(self.weights)
        self.buffers = self._views(self.statistics, [spec.name for spec in layout.statistics])

    def _aligned(self, size: int) -> int:
        """The aligned size of a block of tensors of that size."""
        return -(-self.models * size // ALIGN) * ALIGN

    def blocks(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Named (models, …) views of a flat buffer of trainable values."""
        return self._views(flat, [spec.name for spec in self.layout.tensors])

    def _views(self, flat: torch.Tensor, names: Sequence[str]) -> dict[str, torch.Tensor]:
        views, offset = {}, 0
        for name in names:
            shape, axes = self._orders[name]
            size = prod(shape)
            block = flat[offset : offset + self.models * size]
            views[name] = block.view(self.models, *(shape[axis] for axis in axes))
            offset += self._aligned(size)
        return views

    def load(self, models: Sequence[SparseModel]) -> None:
        """Take over one model each; models that are the same object are moved once."""
        unique = {id(model): model for model in models}
        row_of = {key: row for row, key in enumerate(unique)}
        rows = torch.tensor([row_of[id(model)] for model in models], device=self.device) if len(unique) > 1 else None
        values = torch.stack([torch.as_tensor(model.weights).to(self.device) for model in unique.values()])
        masks = torch.stack([torch.as_tensor(model.mask).to(self.device) for model in unique.values()])
        self._fill(self.tensors, values, rows)
        self._fill(self.buffers, values, rows)
        self._fill(self.blocks(self.pruned), ~masks, rows)

    def _fill(self, views: Mapping[str, torch.Tensor], values: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Write flat vectors, (any, …), into blocks; row i from vector i, or `rows[i]`, or the only one."""
        for name, view in views.items():
            shape, axes = self._orders[name]
            tensor = values[:, self.layout.slices[name]].view(-1, *shape).permute(0, *(axis + 1 for axis in axes))
            view.copy_(tensor if rows is None else tensor[rows])

    def _flat(self, views: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The inverse of `_fill`, (models, values)."""
        parts = []
        for name, view in views.items():
            _, axes = self._orders[name]
            back = sorted(range(len(axes)), key=lambda axis: axes[axis])
            parts.append(view.permute(0, *(axis + 1 for axis in back)).reshape(self.models, -1))
        return torch.cat(parts, 1)

    def rows(self) -> torch.Tensor:
        """The values of each model as a flat vector, (models, total)."""
        return self._flat(self.tensors | self.buffers)

    def set_rows(self, flat: torch.Tensor, rows: torch.Tensor) -> None:
        """Fill a buffer like `weights` from vectors of trainable values, (models, trainable)."""
        self._fill(self.blocks(flat), rows)

    def get_rows(self, flat: torch.Tensor) -> torch.Tensor:
        """The inverse of `set_rows`."""
        return self._flat(self.blocks(flat))
