"""The loss of a run, from its settings.

In: a name, or a user's `module:function`. Out: a function of outputs and targets that gives the mean loss of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from ..errors import ConfigError
from ..plugins import load_named
from ..tasks import CROSS_ENTROPY, LOSSES
from .settings import Training

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
NAMED: dict[str, Loss] = {
    "bce": functional.binary_cross_entropy_with_logits,
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}
assert {CROSS_ENTROPY, *NAMED} == {*LOSSES}


def loss_of(training: Training, evaluating: bool = False) -> Loss:
    """The loss that a client minimises, or, for evaluation, the same without what only training adds."""
    return named_loss(training.loss, 0.0 if evaluating else training.label_smoothing)


def named_loss(name: str, label_smoothing: float = 0.0) -> Loss:
    """A loss by name. Outputs are given to it in the shape of targets that are not classes."""
    if name == CROSS_ENTROPY:
        if label_smoothing:
            return partial(functional.cross_entropy, label_smoothing=label_smoothing)
        return functional.cross_entropy
    found: Any = load_named(name, NAMED, "loss")
    if isinstance(found, type):  # such as torch.nn:HuberLoss
        found = found()
    if not callable(found):
        raise ConfigError(f"loss {name!r} must name a function of outputs and targets. Received: {found!r:.80}.")
    return partial(_on_aligned, found)


def _on_aligned(function: Loss, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return function(aligned(output, target), target)


def aligned(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """An output in the shape of a target that is not classes: (n, 1) beside (n,) would be broadcast to (n, n)."""
    if output.shape == target.shape or not target.is_floating_point() or not same_but_ones(output, target):
        return output
    return output.reshape(target.shape)


def same_but_ones(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors differ in shape by axes of length 1 alone, the batch's not among them."""
    first, second = ([side for side in tensor.shape[1:] if side != 1] for tensor in (one, other))
    return one.shape[:1] == other.shape[:1] and first == second


def is_plain(training: Training) -> bool:
    """Whether the loss is the cross-entropy that kernels compute."""
    return training.loss == CROSS_ENTROPY
