"""Stacks of any network, through torch.func: one functional call mapped over the models."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from ..keyed import KeyedDropout
from .batches import Batches
from .stack import Stack


class AnyStack:
    """A stack of networks whose forward pass `torch.func.vmap` can map."""

    def __init__(self, module: nn.Module, stack: Stack, batches: Batches) -> None:
        self._batches = batches
        # A copy of its own: a functional call lends the module other tensors while it runs, and stacks run in threads.
        self._module, self._stack = deepcopy(module).train(), stack
        self._keys = [name for name, child in module.named_modules() if isinstance(child, KeyedDropout)]
        counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}
        self._counters = {name: b.clone() for name, b in counters.items() if not name.endswith("key")}
        self._mapped = vmap(grad_and_value(self._loss, has_aux=True), randomness="error")

    def _loss(
        self, tensors: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # a forward pass may change them in place
        logits = functional_call(self._module, (tensors, buffers), (x,))
        return cross_entropy(logits, y), buffers

    def step(
        self,
        rows: torch.Tensor,
        keys: torch.Tensor,
        start: int,
        into: torch.Tensor | None,
        lr: float,
        losses: torch.Tensor,
    ) -> None:
        """One batch of each model, rows (models, batch); adds the losses of its samples to `losses`."""
        x, y = self._batches(rows, keys)
        stop = start + len(x)
        tensors = {name: block[start:stop] for name, block in self._stack.tensors.items()}
        buffers: dict[str, Any] = {name: block[start:stop] for name, block in self._stack.buffers.items()}
        extra = {f"{name}.key": keys for name in self._keys}
        extra |= {name: b.expand(len(x), *b.shape).clone() for name, b in self._counters.items()}
        gradients, (means, after) = self._mapped(tensors, buffers | extra, x, y)
        losses[start:stop] += means * x.shape[1]
        for name, block in buffers.items():
            block.copy_(after[name])
        targets = tensors if into is None else self._stack.blocks(into)
        for name, gradient in gradients.items():
            if into is None:
                targets[name].sub_(gradient, alpha=lr)
            else:
                targets[name][start:stop] = gradient
