"""Many models of one network, stacked: each tensor is one contiguous block (models, *shape)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..model import Layout, SparseModel


class Stack:
    """Weights, statistics, momentum and masks of several models, laid out for one computation.

    All trainable blocks lie in one flat buffer (as do momentum and gradient, when there are any), so that a step of SGD
    on every model is a handful of operations on whole buffers.
    """

    def __init__(self, layout: Layout, models: int, device: torch.device) -> None:
        self.layout, self.models, self.device = layout, models, device
        self.weights = torch.zeros(models * layout.trainable, device=device)
        self.statistics = torch.zeros(models * (layout.total - layout.trainable), device=device)
        self.pruned = torch.zeros(models * layout.trainable, dtype=torch.bool, device=device)
        self.any_pruned = False
        self.tensors = self.blocks(self.weights)
        offset, self.buffers = 0, {}
        for spec in layout.statistics:
            block = self.statistics[offset : offset + models * spec.size]
            self.buffers[spec.name] = block.view(models, *spec.shape)
            offset += models * spec.size

    def blocks(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Named (models, *shape) views of a flat buffer."""
        views, offset = {}, 0
        for spec in self.layout.tensors:
            views[spec.name] = flat[offset : offset + self.models * spec.size].view(self.models, *spec.shape)
            offset += self.models * spec.size
        return views

    def load(self, models: Sequence[SparseModel]) -> None:
        """Take over one model each; models that are the same object are moved once."""
        unique = {id(model): model for model in models}
        place = {key: row for row, key in enumerate(unique)}
        rows = torch.tensor([place[id(model)] for model in models], device=self.device)
        values = torch.stack([torch.as_tensor(model.weights).to(self.device) for model in unique.values()])
        masks = torch.stack([torch.as_tensor(model.mask).to(self.device) for model in unique.values()])
        self.any_pruned = not bool(masks.all())
        pruned = self.blocks(self.pruned)
        for spec in self.layout.tensors:
            span = self.layout.slices[spec.name]
            self.tensors[spec.name].copy_(values[:, span].view(-1, *spec.shape)[rows])
            pruned[spec.name].copy_(~masks[:, span].view(-1, *spec.shape)[rows])
        for spec in self.layout.statistics:
            self.buffers[spec.name].copy_(values[:, self.layout.slices[spec.name]].view(-1, *spec.shape)[rows])

    def rows(self) -> torch.Tensor:
        """Every model's values as one flat vector a model, (models, total)."""
        blocks = [*self.tensors.values(), *self.buffers.values()]
        return torch.cat([block.reshape(self.models, -1) for block in blocks], 1)

    def set_rows(self, flat: torch.Tensor, rows: torch.Tensor) -> None:
        """Fill a buffer like `weights` from vectors of trainable values, (models, trainable)."""
        for name, block in self.blocks(flat).items():
            block.copy_(rows[:, self.layout.slices[name]].view(block.shape))

    def get_rows(self, flat: torch.Tensor) -> torch.Tensor:
        """The inverse of `set_rows`."""
        return torch.cat([block.reshape(self.models, -1) for block in self.blocks(flat).values()], 1)
