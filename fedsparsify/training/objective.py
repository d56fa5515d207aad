"""What a model is measured by on test samples: a loss, accuracy where targets are classes, and further metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ..tasks import Targets, is_own, metrics_of
from .losses import Loss, is_plain, loss_of
from .metrics import Metric, make_metrics
from .settings import Training


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on samples it was not trained on."""

    accuracy: float | None  # None where targets have none
    loss: float
    metrics: dict[str, float] = field(default_factory=dict)  # those that a run names, in its order
    client_views: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # where clients evaluate it


@dataclass(frozen=True)
class Objective:
    """How a model is measured."""

    loss: Loss = cross_entropy
    counts: bool = True  # whether accuracy is counted batch by batch: targets are classes
    classes: int = 0  # outputs that accuracy needs; 0: any number
    metrics: tuple[Metric, ...] = ()  # on all outputs together
    summed: bool = True  # whether the loss is torch's cross-entropy, which can be summed over samples

    def total(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The sum of a batch's losses."""
        if self.summed and target.ndim == 1:
            return cross_entropy(output, target, reduction="sum")
        return self.loss(output, target) * len(target)

    def has_accuracy(self, output: torch.Tensor) -> bool:
        """Whether outputs are one number per class."""
        return self.counts and output.ndim > 1 and self.classes in (0, output.shape[1])


def objective_of(training: Training, metrics: Sequence[str], targets: Targets, classes: int) -> Objective:
    """The objective of a run: its settings, and what its targets are."""
    names = metrics_of(metrics, targets)
    counts = targets == "classes"
    needed = classes if is_own(training.loss) else 0  # outputs of a user's own loss may be anything
    made = make_metrics([name for name in names if not (counts and name == "accuracy")], targets)
    return Objective(loss_of(training, evaluating=True), counts, needed, made, is_plain(training))
