"""Stacked multilayer perceptrons with a hand-written backward pass: every layer of every model is one batched product.

For what the native and the GPU back end refuse: perceptrons with dropout, augmented samples, and machines without numba
or Triton. Most of the gain on a CPU comes from doing without autograd and an optimiser object. Plain SGD is fused into
the products: the gradient is subtracted from the weights as it is computed and never stored.

In: the samples of a step. Out: the gradients of all models in a buffer, or the step itself.
"""

from __future__ import annotations

import torch
from torch import nn

from ...keyed import KeyedDropout, uniform
from ..batches import Batches, StepInputs
from ..losses import Loss
from ..sequence import in_sequence
from .stack import Order, Stack


class DenseStack:
    """A stack of networks made of Flatten, Linear, ReLU and Dropout in sequence."""

    def __init__(
        self,
        module: nn.Module,
        stack: Stack,
        batches: Batches,
        loss: Loss | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        """`loss`: one other than cross-entropy, whose gradient is written out below."""
        self._layers = in_sequence(module)
        self._loss, self._smoothing = loss, label_smoothing
        self._stack, self._batches = stack, batches

    @staticmethod
    def takes(module: nn.Module) -> bool:
        """Whether the module is such a network."""
        layers = [layer for _, layer in in_sequence(module)]
        kinds = [type(layer) for layer in layers]
        known = {nn.Linear, nn.ReLU, nn.Flatten, KeyedDropout}
        if any(isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1) for layer in layers):
            return False
        return bool(kinds) and known.issuperset(kinds) and (kinds[0], kinds[-1]) == (nn.Flatten, nn.Linear)

    @staticmethod
    def orders(module: nn.Module) -> dict[str, Order]:
        """Weights lie as (inputs, outputs): the products are a seventh faster in this order."""
        layers = ((name, layer) for name, layer in in_sequence(module) if isinstance(layer, nn.Linear))
        return {f"{name}.weight": (tuple(layer.weight.shape), (1, 0)) for name, layer in layers}

    def step(self, inputs: StepInputs) -> None:
        """Forward and backward; without a buffer for the gradient, also the step of plain SGD."""
        x, y = self._batches(inputs.rows, inputs.keys)
        weights = {name: block[inputs.span] for name, block in self._stack.tensors.items()}
        targets = weights
        alpha = -float(inputs.rates[0])
        beta = 1.0 + alpha * inputs.decay
        if inputs.gradient is not None:
            targets = {name: block[inputs.span] for name, block in self._stack.blocks(inputs.gradient).items()}
            beta, alpha = 0.0, 1.0
        tape: list[torch.Tensor] = []
        h = x.flatten(2)
        for name, layer in self._layers:
            if isinstance(layer, nn.Linear):
                tape.append(h)
                weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
                h = torch.bmm(h, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), h, weight)
            elif isinstance(layer, nn.ReLU):
                h = h.relu_()
                tape.append(h)
            elif isinstance(layer, KeyedDropout):
                kept = uniform(inputs.keys, h[0].numel(), layer.salt).view(h.shape) >= layer.p
                scale = kept * (1 / (1 - layer.p))
                h = h * scale
                tape.append(scale)
        losses = inputs.losses[inputs.span]
        if self._loss is None:
            d = self._cross_entropy(h, y, losses).div_(x.shape[1])
        else:
            # Model by model, by autograd: torch.func.vmap would import a compiler for this, which takes seconds.
            with torch.enable_grad():
                h = h.detach().requires_grad_()
                means = torch.stack([self._loss(*one) for one in zip(h, y, strict=True)])
                (d,) = torch.autograd.grad(means.sum(), h)
            losses += means.detach() * x.shape[1]
        for position, (name, layer) in reversed(list(enumerate(self._layers))):
            if isinstance(layer, nn.Linear):
                before = tape.pop()
                passed = torch.bmm(d, weights[f"{name}.weight"].transpose(1, 2)) if position > 1 else None
                targets[f"{name}.weight"].baddbmm_(before.transpose(1, 2), d, beta=beta, alpha=alpha)
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

    def _cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        """Add the cross entropy of each model's batch to its loss. Returns the gradients of the sums."""
        logs, hit, smoothing = torch.log_softmax(logits, 2), labels.unsqueeze(2), self._smoothing
        losses -= logs.gather(2, hit).sum((1, 2)).mul_(1 - smoothing)
        if smoothing:
            losses -= logs.mean(2).sum(1).mul_(smoothing)
        d = logs.exp_().scatter_add_(2, hit, torch.full_like(hit, smoothing - 1, dtype=logits.dtype))
        return d.sub_(smoothing / logits.shape[2]) if smoothing else d
