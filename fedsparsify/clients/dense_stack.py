"""Stacked multilayer perceptrons with a hand-written backward pass: every layer of every model is one batched product.

Leaving autograd and the optimiser object is most of the gain on a CPU, where a plain step of `fc` is mostly overhead.
Plain SGD is fused into the products: the gradient is added to the weights as it is computed and never stored.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..keyed import KeyedDropout, uniform
from .batches import Batches
from .stack import Stack


class DenseStack:
    """A stack of networks made of Flatten, Linear, ReLU and Dropout in sequence."""

    def __init__(self, module: nn.Module, stack: Stack, batches: Batches) -> None:
        self._layers = list(module.named_children())
        self._stack, self._batches = stack, batches

    @staticmethod
    def takes(module: nn.Module) -> bool:
        """Whether the module is such a network."""
        kinds = (nn.Linear, nn.ReLU, nn.Flatten, KeyedDropout)
        children = list(module.children())
        return (
            type(module) is nn.Sequential
            and all(type(child) in kinds for child in children)
            and isinstance(children[0], nn.Flatten)
            and isinstance(children[-1], nn.Linear)
        )

    def step(
        self,
        rows: torch.Tensor,
        keys: torch.Tensor,
        start: int,
        into: torch.Tensor | None,
        lr: float,
        losses: torch.Tensor,
    ) -> None:
        """One batch of each model, rows (models, batch); adds the losses of its samples to `losses`.

        The gradient goes into the buffer `into`, or straight into the weights where there is none.
        """
        x, y = self._batches(rows, keys)
        stop, batch = start + len(x), x.shape[1]
        weights = {name: block[start:stop] for name, block in self._stack.tensors.items()}
        targets = weights
        beta, alpha = 1.0, -lr
        if into is not None:
            targets = {name: block[start:stop] for name, block in self._stack.blocks(into).items()}
            beta, alpha = 0.0, 1.0
        tape: list[torch.Tensor] = []
        h = x.flatten(2)
        for name, layer in self._layers:
            if isinstance(layer, nn.Linear):
                tape.append(h)
                transposed = weights[f"{name}.weight"].transpose(1, 2)
                bias = weights.get(f"{name}.bias")
                h = torch.bmm(h, transposed) if bias is None else torch.baddbmm(bias.unsqueeze(1), h, transposed)
            elif isinstance(layer, nn.ReLU):
                h = h.relu_()
                tape.append(h)
            elif isinstance(layer, KeyedDropout):
                kept = uniform(keys, h[0].numel(), layer.salt).view(h.shape) >= layer.p
                scale = kept * (1 / (1 - layer.p))
                h = h * scale
                tape.append(scale)
        losses[start:stop] += cross_entropy(h.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).sum(1)
        d = torch.softmax(h, 2)
        d.scatter_add_(2, y.unsqueeze(2), torch.full_like(y, -1, dtype=d.dtype).unsqueeze(2))
        d /= batch
        for position, (name, layer) in reversed(list(enumerate(self._layers))):
            if isinstance(layer, nn.Linear):
                before = tape.pop()
                passed = torch.bmm(d, weights[f"{name}.weight"]) if position > 1 else None
                targets[f"{name}.weight"].baddbmm_(d.transpose(1, 2), before, beta=beta, alpha=alpha)
                if f"{name}.bias" in targets:
                    bias = targets[f"{name}.bias"]
                    bias.mul_(beta).add_(d.sum(1), alpha=alpha)
                if passed is None:
                    break
                d = passed
            elif isinstance(layer, nn.ReLU):
                d *= tape.pop() > 0
            elif isinstance(layer, KeyedDropout):
                d *= tape.pop()
