"""The SGD rule on a stack: what a training step does after the gradient.

In: the gradients of some models. Out: their weights and velocities, one step further. For speed, the rule is repeated
in the worker and in kernels; `tests/training/test_sgd_rule.py` holds all of them to one reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...methods import Request, Score
from ..settings import Training
from ..worker import Worker, beside
from .stack import Stack


class SGD:
    """SGD on a stack. Its buffers keep their addresses from round to round, so that a captured graph can read them.

    Plain SGD may need no gradient buffer: the network subtracts each gradient from its weights. A pruned weight
    was zero before the step, so setting it to zero after the step is the same as masking its gradient.
    """

    def __init__(self, stack: Stack, training: Training, fused: bool) -> None:
        self._stack, self._training = stack, training
        self._prox = torch.zeros(stack.models, device=stack.device)
        self._anchor: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._velocity = torch.zeros_like(stack.weights) if training.momentum else None
        self._always = not fused or self._velocity is not None  # whether there is always a gradient buffer
        self._kept = torch.ones(0)
        self.squares: torch.Tensor | None = None
        self._linear: torch.Tensor | None = None
        self.has_prox = self.sums_squares = self.has_linear = self._pruned = False

    def begin(self, requests: Sequence[Request], workers: Sequence[Worker]) -> None:
        """Prepare for a round on the models that the stack holds now."""
        stack = self._stack
        self.has_prox = any(request.prox for request in requests)
        self.sums_squares = any(isinstance(request, Score) for request in requests)
        self._pruned = stack.device.type != "cpu" or bool(stack.pruned.any())
        if self._pruned and stack.device.type == "cpu":
            self._kept = (~stack.pruned).float()  # multiplying by it takes a fifteenth of the time of masked_fill_
        if self.has_prox:
            self._prox.copy_(torch.tensor([request.prox for request in requests]))
            self._anchor = torch.empty_like(stack.weights) if self._anchor is None else self._anchor
            self._anchor.copy_(stack.weights)
        if self.sums_squares:
            self.squares = torch.empty_like(stack.weights) if self.squares is None else self.squares
            self.squares.zero_()
        self._begin_linear(requests)
        if self._gradient is None and self._stores_gradient:
            self._gradient = torch.zeros_like(stack.weights)
        if self._velocity is not None:
            self._velocity.zero_()
            if any(worker.velocity is not None for worker in workers):
                empty = torch.zeros(stack.layout.trainable, device=stack.device)
                kept = [empty if worker.velocity is None else worker.velocity for worker in workers]
                stack.set_rows(self._velocity, torch.stack(kept))
                self._velocity.masked_fill_(stack.pruned, 0)

    def _begin_linear(self, requests: Sequence[Request]) -> None:
        """Take the linear terms over, with zeros for clients that have none and for pruned entries."""
        stack = self._stack
        self.has_linear = any(request.linear is not None for request in requests)
        if not self.has_linear:
            return
        rows = torch.zeros(stack.models, stack.layout.trainable, device=stack.device)
        for row, request in zip(rows, requests, strict=True):
            if request.linear is not None:
                row.copy_(beside(request.linear, row))
        self._linear = torch.zeros_like(stack.weights) if self._linear is None else self._linear
        stack.set_rows(self._linear, rows)
        self._linear.masked_fill_(stack.pruned, 0)

    @property
    def gradient(self) -> torch.Tensor | None:
        """Where the network writes its gradients; None where it subtracts them from its weights itself."""
        return self._gradient if self._stores_gradient else None

    @property
    def shape(self) -> tuple[bool, ...]:
        """What of the rule a captured graph depends on."""
        return self.has_prox, self.sums_squares, self.has_linear

    @property
    def _stores_gradient(self) -> bool:
        return self._always or self.has_prox or self.sums_squares or self.has_linear

    def step(self, span: slice) -> None:
        """One step of the models of `span`."""
        stack, training, gradient = self._stack, self._training, self.gradient
        if gradient is None:
            if self._pruned:
                stack.weights.mul_(self._kept)
            return
        if self.sums_squares and self.squares is not None:  # pruned entries too
            for g, square in zip(self._parts(gradient, span), self._parts(self.squares, span), strict=True):
                square.addcmul_(g, g)
        if self.has_prox and self._anchor is not None:
            for g, w, a in zip(*(self._blocks(x, span) for x in (gradient, stack.weights, self._anchor)), strict=True):
                g += (w - a) * self._prox[span].view(-1, *[1] * (w.ndim - 1))
        if self.has_linear and self._linear is not None:
            for g, term in zip(self._parts(gradient, span), self._parts(self._linear, span), strict=True):
                g += term
        if self._pruned and stack.device.type == "cpu":
            gradient.mul_(self._kept)
        elif self._pruned:
            gradient.masked_fill_(stack.pruned, 0)
        gradients = self._parts(gradient, span)
        if self._velocity is not None:
            velocities = self._parts(self._velocity, span)
            for g, v in zip(gradients, velocities, strict=True):
                v.mul_(training.momentum).add_(g)
                if training.nesterov:
                    g.add_(v, alpha=training.momentum)
            gradients = gradients if training.nesterov else velocities
        for g, w in zip(gradients, self._parts(stack.weights, span), strict=True):
            w.sub_(g, alpha=training.lr)

    def finish(self, workers: Sequence[Worker]) -> None:
        """Give every worker its velocity, and set pruned entries to zero even where training diverged."""
        self._stack.weights.masked_fill_(self._stack.pruned, 0)
        if self._velocity is not None:
            for worker, row in zip(workers, self._stack.get_rows(self._velocity), strict=True):
                worker.velocity = row

    def _parts(self, flat: torch.Tensor, span: slice) -> list[torch.Tensor]:
        """The part of a buffer that belongs to the models in `span`: one piece where it is all of them."""
        return [flat] if span == slice(0, self._stack.models) else self._blocks(flat, span)

    def _blocks(self, flat: torch.Tensor, span: slice) -> list[torch.Tensor]:
        return [block[span] for block in self._stack.blocks(flat).values()]


class FusedSGD(SGD):
    """The same rule as one GPU kernel over whole buffers, which also writes the weights in the compute type."""

    def __init__(self, stack: Stack, training: Training, shadow: torch.Tensor, fused: bool) -> None:
        super().__init__(stack, training, fused)
        self._shadow = shadow

    def step(self, span: slice) -> None:
        """One step of the models of `span`."""
        from ..gpu import sgd_kernels

        stack, training = self._stack, self._training
        if self.gradient is None:
            return  # the network has taken the step already, mask included
        if self.has_prox or self.sums_squares or span != slice(0, stack.models):
            super().step(span)
            if self._shadow is not stack.weights:
                self._shadow.copy_(stack.weights)
            return
        count, unread = stack.weights.numel(), stack.weights  # unread: a pointer that the kernel does not follow
        sgd_kernels._sgd[(-(-count // 2048),)](
            *(
                stack.weights,
                self._gradient,
                unread if self._velocity is None else self._velocity,
                self._linear if self.has_linear else unread,
                stack.pruned,
                self._shadow,
                count,
                training.lr,
                training.momentum,
            ),
            *(self.has_linear, self._velocity is not None, training.nesterov, self._shadow is not stack.weights, 2048),
            num_warps=8,
        )
