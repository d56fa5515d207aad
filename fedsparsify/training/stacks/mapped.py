"""Stacks of any network, by torch.func: one functional call mapped over the models.

In: the samples of a step. Out: the gradients of all models in a buffer, or the step itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from ...keyed import KeyedDropout
from ..batches import Batches, StepInputs
from ..fixed_norms import set_training
from ..losses import Loss
from .stack import Stack


class MappedStack:
    """A stack of networks whose forward pass `torch.func.vmap` can map."""

    def __init__(self, module: nn.Module, stack: Stack, batches: Batches, loss: Loss = cross_entropy) -> None:
        self._batches, self._criterion = batches, loss
        # The module is this stack's alone: a functional call lends it other tensors while it runs.
        self._module, self._stack, self._fixed_norms = module.to(stack.device).train(), stack, False
        self._keys = [name for name, child in module.named_modules() if isinstance(child, KeyedDropout)]
        counters = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}
        self._counters = {name: b.clone() for name, b in counters.items() if not name.endswith("key")}
        self._mapped = vmap(grad_and_value(self._loss, has_aux=True), randomness="error")

    def _loss(
        self, tensors: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}  # a forward pass may change them in place
        logits = functional_call(self._module, (tensors, buffers), (x,))
        return self._criterion(logits, y), buffers

    def step(self, inputs: StepInputs) -> None:
        """Gradients of every model into the buffer, or applied at once."""
        if inputs.fixed_norms != self._fixed_norms:  # rarely: it visits every part of the module
            self._fixed_norms = inputs.fixed_norms
            set_training(self._module, inputs.fixed_norms)
        x, y = self._batches(inputs.rows, inputs.keys)
        tensors = {name: block[inputs.span] for name, block in self._stack.tensors.items()}
        buffers: dict[str, Any] = {name: block[inputs.span] for name, block in self._stack.buffers.items()}
        extra = {f"{name}.key": inputs.keys for name in self._keys}
        extra |= {name: b.expand(len(x), *b.shape).clone() for name, b in self._counters.items()}
        gradients, (means, after) = self._mapped(tensors, buffers | extra, x, y)
        inputs.losses[inputs.span] += means * x.shape[1]
        for name, block in buffers.items():
            block.copy_(after[name])
        targets = tensors if inputs.gradient is None else self._stack.blocks(inputs.gradient)
        for name, gradient in gradients.items():
            if inputs.gradient is None:
                rate = float(inputs.rates[0])
                targets[name].mul_(1 - rate * inputs.decay).sub_(gradient, alpha=rate)
            else:
                targets[name][inputs.span] = gradient
