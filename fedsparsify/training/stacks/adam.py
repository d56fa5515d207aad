"""Adam and AdamW on a stack.

In: the gradients of some models. Out: their weights and moments, one step further.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...methods import Request
from ..adam import STATE, adam_step
from ..settings import Training
from ..worker import Worker
from .sgd import SGD, per_model
from .stack import Stack


class Adam(SGD):
    """The terms of the gradient are those of SGD. Each model counts its own steps, on the stack's device."""

    def __init__(self, stack: Stack, training: Training, fused: bool, shadow: torch.Tensor | None = None) -> None:
        super().__init__(stack, training, fused, shadow)
        self._steps = torch.zeros(stack.models, device=stack.device)

    def _names(self) -> tuple[str, ...]:
        return STATE[:2]

    def begin(self, requests: Sequence[Request], workers: Sequence[Worker], mixed: bool) -> None:
        """Prepare for a round on the models that the stack holds now."""
        super().begin(requests, workers, mixed)
        none = torch.zeros(1, device=self._steps.device)
        self._steps.copy_(torch.cat([worker.optimizer.get("steps", none) for worker in workers]))

    def _move(self, gradient: torch.Tensor, span: slice, rates: torch.Tensor) -> None:
        training, steps = self._training, self._steps[span]
        steps += 1
        flat = gradient, self._stack.weights, *self._state.values()
        for g, w, first, second in zip(*(self._blocks(buffer, span) for buffer in flat), strict=True):
            rate = per_model(rates, w)
            if training.optimizer == "adamw":
                w.mul_(1 - rate * training.weight_decay)
            elif training.weight_decay:
                g.add_(w, alpha=training.weight_decay)
            adam_step(w, g, first, second, per_model(steps, w), rate)

    def finish(self, workers: Sequence[Worker]) -> None:
        """Give every worker its moments and its number of steps."""
        super().finish(workers)
        for worker, steps in zip(workers, self._steps.clone().view(-1, 1), strict=True):
            worker.optimizer["steps"] = steps
