"""The SGD rule on a stack: what a training step does after the gradient.

In: the gradients of some models. Out: their weights and velocities, one step further. For speed, the rule is repeated
in the worker and in kernels; `tests/training/test_sgd_rule.py` holds all of them to one reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...methods import Request, Score
from ..settings import Training
from ..worker import TINY, Worker, beside
from .stack import Stack


class SGD:
    """SGD on a stack. Its buffers keep their addresses from round to round, so that a captured graph can read them.

    Plain SGD may need no gradient buffer: the network subtracts each gradient from its weights. A pruned weight
    was zero before the step, so setting it to zero after the step is the same as masking its gradient.
    """

    def __init__(self, stack: Stack, training: Training, fused: bool, shadow: torch.Tensor | None = None) -> None:
        """`fused`: the network can apply plain SGD by itself. `shadow`: the weights in the compute type of a GPU."""
        self._stack, self._training = stack, training
        self.shadow = stack.weights if shadow is None else shadow
        self._prox = torch.zeros(stack.models, device=stack.device)
        self._anchor: torch.Tensor | None = None
        self._linear: torch.Tensor | None = None
        self._gradient: torch.Tensor | None = None
        self._state = {name: torch.zeros_like(stack.weights) for name in self._names()}
        # Whether there is always a gradient buffer.
        self._always = not fused or bool(self._state or training.clip_norm or training.sam)
        self._kept = torch.ones(0)
        self.squares: torch.Tensor | None = None
        self.has_prox = self.sums_squares = self.has_linear = self._same_prox = self._mixed = self._pruned = False

    def _names(self) -> tuple[str, ...]:
        """What the optimiser keeps of every weight."""
        return ("momentum",) if self._training.momentum else ()

    def begin(self, requests: Sequence[Request], workers: Sequence[Worker], mixed: bool) -> None:
        """Prepare for a round on the models that the stack holds now. `mixed`: their learning rates differ."""
        stack, self._mixed = self._stack, mixed
        self.has_prox = any(request.prox for request in requests)
        self.sums_squares = any(isinstance(request, Score) for request in requests)
        self._pruned = stack.device.type != "cpu" or bool(stack.pruned.any())
        if self._pruned and stack.device.type == "cpu":
            self._kept = (~stack.pruned).float()  # multiplying by it takes a fifteenth of the time of masked_fill_
        if self.has_prox:
            self._same_prox = len({request.prox for request in requests}) == 1
            self._prox.copy_(torch.tensor([request.prox for request in requests]))
            self._anchor = torch.empty_like(stack.weights) if self._anchor is None else self._anchor
            self._anchor.copy_(stack.weights)
        if self.sums_squares:
            self.squares = torch.empty_like(stack.weights) if self.squares is None else self.squares
            self.squares.zero_()
        self._begin_linear(requests)
        if self._gradient is None and self._stores_gradient:
            self._gradient = torch.zeros_like(stack.weights)
        for name, buffer in self._state.items():
            buffer.zero_()
            if any(name in worker.optimizer for worker in workers):
                empty = torch.zeros(stack.layout.trainable, device=stack.device)
                stack.set_rows(buffer, torch.stack([worker.optimizer.get(name, empty) for worker in workers]))
                buffer.masked_fill_(stack.pruned, 0)

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
    def shape(self) -> tuple[object, ...]:
        """What of the rule a captured graph depends on."""
        return self.has_prox, self._same_prox, self.sums_squares, self.has_linear, self._mixed

    @property
    def _stores_gradient(self) -> bool:
        return self._always or self.has_prox or self.sums_squares or self.has_linear or self._mixed

    def go_uphill(self, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Move the models of `span` along their masked gradients, by SAM's radius. Returns what `go_back` needs."""
        stack, gradient = self._stack, self.gradient
        assert gradient is not None
        before = stack.weights.clone(), stack.statistics.clone()
        ways = [
            block.masked_fill(pruned, 0)
            for block, pruned in zip(self._blocks(gradient, span), self._blocks(stack.pruned, span), strict=True)
        ]
        factors = self._training.sam / (norms_of(ways) + TINY)
        for w, way in zip(self._blocks(stack.weights, span), ways, strict=True):
            w.addcmul_(way, per_model(factors, way))
        if self.shadow is not stack.weights:
            self.shadow.copy_(stack.weights)
        return before

    def go_back(self, before: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Bring weights and statistics back to before `go_uphill`; `step` does so with the shadow."""
        self._stack.weights.copy_(before[0])
        self._stack.statistics.copy_(before[1])

    def step(self, span: slice, rates: torch.Tensor) -> None:
        """One step of the models of `span`, each at its learning rate."""
        stack, gradient = self._stack, self.gradient
        if gradient is None:
            if self._pruned:
                stack.weights.mul_(self._kept)
            return
        if self.sums_squares and self.squares is not None:  # pruned entries too
            for g, square in zip(self._parts(gradient, span), self._parts(self.squares, span), strict=True):
                square.addcmul_(g, g)
        if self.has_prox and self._anchor is not None:
            for g, w, a in zip(*(self._blocks(x, span) for x in (gradient, stack.weights, self._anchor)), strict=True):
                g += (w - a) * per_model(self._prox[span], w)
        if self.has_linear and self._linear is not None:
            for g, term in zip(self._parts(gradient, span), self._parts(self._linear, span), strict=True):
                g += term
        if self._pruned and stack.device.type == "cpu":
            gradient.mul_(self._kept)
        elif self._pruned:
            gradient.masked_fill_(stack.pruned, 0)
        if self._training.clip_norm:
            self._clip(self._blocks(gradient, span))
        self._move(gradient, span, rates)
        if self.shadow is not stack.weights:
            self.shadow.copy_(stack.weights)

    def _clip(self, gradients: Sequence[torch.Tensor]) -> None:
        """Scale the gradient of each model down to the largest norm that is allowed."""
        factors = (self._training.clip_norm / (norms_of(gradients) + 1e-6)).clamp_(max=1)
        for block in gradients:
            block *= per_model(factors, block)

    def _move(self, gradient: torch.Tensor, span: slice, rates: torch.Tensor) -> None:
        """Weight decay, momentum, and the step itself. Changes the gradient."""
        training = self._training
        split = self._blocks if self._mixed else self._parts
        gradients, weights = split(gradient, span), split(self._stack.weights, span)
        if training.weight_decay:
            for g, w in zip(gradients, weights, strict=True):
                g.add_(w, alpha=training.weight_decay)
        if "momentum" in self._state:
            velocities = split(self._state["momentum"], span)
            for g, v in zip(gradients, velocities, strict=True):
                v.mul_(training.momentum).add_(g)
                if training.nesterov:
                    g.add_(v, alpha=training.momentum)
            gradients = gradients if training.nesterov else velocities
        on_host = rates.device.type == "cpu" and not self._mixed
        rate = float(rates[0]) if on_host else 0.0
        for g, w in zip(gradients, weights, strict=True):
            if on_host:
                w.sub_(g, alpha=rate)
            else:  # a captured graph must read the rate on the GPU
                w.addcmul_(g, per_model(rates, w) if self._mixed else rates[0], value=-1)

    def finish(self, workers: Sequence[Worker]) -> None:
        """Give every worker its optimiser's state, and set pruned entries to zero even where training diverged."""
        self._stack.weights.masked_fill_(self._stack.pruned, 0)
        for name, buffer in self._state.items():
            for worker, row in zip(workers, self._stack.get_rows(buffer), strict=True):
                worker.optimizer[name] = row

    def _parts(self, flat: torch.Tensor, span: slice) -> list[torch.Tensor]:
        """The part of a buffer that belongs to the models in `span`: one piece where it is all of them."""
        return [flat] if span == slice(0, self._stack.models) else self._blocks(flat, span)

    def _blocks(self, flat: torch.Tensor, span: slice) -> list[torch.Tensor]:
        return [block[span] for block in self._stack.blocks(flat).values()]


def norms_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of each model's whole gradient, from its blocks."""
    norms: torch.Tensor = torch.stack([block.flatten(1).norm(dim=1) for block in gradients]).norm(dim=0)
    return norms


def per_model(values: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """One number per model, in a shape that multiplies a block of their tensors."""
    return values.view(-1, *[1] * (block.ndim - 1))


class FusedSGD(SGD):
    """The same rule as one GPU kernel over whole buffers, which also writes the weights in the compute type."""

    _power = 1.0  # β of powerpropagation: the buffer of weights holds v, the network's values are in the compute type
    _raised: torch.Tensor | None = None  # entries of weight tensors; a captured graph reads it where it is

    def begin(self, requests: Sequence[Request], workers: Sequence[Worker], mixed: bool) -> None:
        """Prepare for a round on the models that the stack holds now; all requests have one power."""
        self._power = requests[0].power
        if self._power != 1:
            if self._raised is None:
                self._raised = torch.zeros_like(self._stack.pruned)
                blocks = self._stack.blocks(self._raised)
                for spec in self._stack.layout.tensors:
                    blocks[spec.name].fill_(len(spec.shape) > 1)
            self._stack.weights.copy_(self._to_power(1 / self._power))
        super().begin(requests, workers, mixed)

    def _to_power(self, power: float) -> torch.Tensor:
        """The weights, with sign(w)·|w|^power in weight tensors."""
        assert self._raised is not None
        weights = self._stack.weights
        return torch.where(self._raised, weights.sign() * weights.abs().pow(power), weights)

    def finish(self, workers: Sequence[Worker]) -> None:
        """Give every worker its optimiser's state; the stack holds the network's values again."""
        super().finish(workers)
        if self._power != 1:
            self._stack.weights.copy_(self._to_power(self._power))

    @property
    def shape(self) -> tuple[object, ...]:
        """What of the rule a captured graph depends on."""
        return *super().shape, self._power

    @property
    def _stores_gradient(self) -> bool:  # the network reads one learning rate per model
        return self._always or self.has_prox or self.sums_squares or self.has_linear or self._power != 1

    def step(self, span: slice, rates: torch.Tensor) -> None:
        """One step of the models of `span`, each at its learning rate."""
        from ..gpu import sgd_kernels

        stack, training = self._stack, self._training
        if self.gradient is None:
            return  # the network has taken the step already, mask included
        different = self._mixed or (self.has_prox and not self._same_prox)
        if different or self.sums_squares or training.clip_norm or span != slice(0, stack.models):
            self._step_in_parts(span, rates)
            return
        raised = stack.pruned if self._raised is None else self._raised
        count, unread = stack.weights.numel(), stack.weights  # unread: a pointer that the kernel does not follow
        sgd_kernels._sgd[(-(-count // 2048),)](
            *(stack.weights, self._gradient, self._state.get("momentum", unread)),
            *(self._anchor if self.has_prox else unread, self._linear if self.has_linear else unread),
            *(stack.pruned, raised, self.shadow, count, rates, self._prox, training.momentum),
            *(training.weight_decay, self._power, self._power != 1),
            *(self.has_prox, self.has_linear, "momentum" in self._state, training.nesterov),
            *(self.shadow is not stack.weights, 2048),
            num_warps=8,
        )

    def _step_in_parts(self, span: slice, rates: torch.Tensor) -> None:
        """By operations of torch's, between the gradient's way to v and the values' way to the network."""
        if self._power != 1 and self._gradient is not None and self._raised is not None:
            slope = self._power * self._stack.weights.abs().pow(self._power - 1)
            self._gradient.mul_(torch.where(self._raised, slope, 1.0))
        super().step(span, rates)
        if self._power != 1:
            self.shadow.copy_(self._to_power(self._power))
