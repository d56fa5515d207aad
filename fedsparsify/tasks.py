"""What a run is trained for: losses and metrics by name, the targets that they need, and which direction is better.

Only names stand here, so that configs and reports need no torch. What the names compute is in `training/losses.py` and
`training/metrics.py`. A loss or metric of a user's own is named `module:function`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError, nearest

Targets = Literal["classes", "labels", "values"]  # one class each, yes or no for each label, or numbers
WORDS: dict[Targets, str] = {"classes": "classes", "labels": "yes-or-no labels", "values": "values"}
CROSS_ENTROPY = "cross-entropy"
LOSSES: dict[str, Targets] = {
    CROSS_ENTROPY: "classes",
    "bce": "labels",
    "mse": "values",
    "mae": "values",
    "huber": "values",
}


@dataclass(frozen=True)
class About:
    """What a metric needs, and whether more of it is better."""

    targets: tuple[Targets, ...]
    higher: bool = True


METRICS: dict[str, About] = {
    "accuracy": About(("classes", "labels")),
    "top-5": About(("classes",)),  # and top-K for any K
    "label-accuracy": About(("labels",)),
    "balanced-accuracy": About(("classes",)),
    "macro-f1": About(("classes", "labels")),
    "micro-f1": About(("classes", "labels")),
    "macro-precision": About(("classes", "labels")),
    "macro-recall": About(("classes", "labels")),
    "mean-iou": About(("classes", "labels")),
    "auc": About(("classes", "labels")),
    "average-precision": About(("labels",)),
    "mse": About(("values",), higher=False),
    "rmse": About(("values",), higher=False),
    "mae": About(("values",), higher=False),
    "r2": About(("values",)),
}
# What a run measures that names no metric. The loss is in every line of the history.
DEFAULTS: dict[Targets, tuple[str, ...]] = {
    "classes": ("accuracy",),
    "labels": ("label-accuracy",),
    "values": ("r2", "mae"),
}


def is_own(name: str) -> bool:
    """Whether a name is a user's `module:function`."""
    return ":" in name


def targets_of(loss: str) -> Targets | None:
    """The targets that a loss takes; None for a user's own, which is given what the data set holds."""
    return LOSSES.get(loss)


def about(metric: str) -> About | None:
    """What is known of a metric; None for a user's own."""
    return METRICS.get("top-5" if re.fullmatch(r"top-[1-9]\d{0,5}", metric) else metric)


def higher_is_better(metric: str) -> bool:
    """Whether more of a metric of ours is better; a user's own is taken to be so."""
    known = about(metric)
    return known.higher if known else metric != "loss"


def check_task(loss: str, metrics: Sequence[str]) -> None:
    """Refuse unknown losses and metrics, and metrics of other targets than the loss has."""
    if not is_own(loss) and loss not in LOSSES:
        raise ConfigError(f"there is no loss {loss!r}. {nearest(loss, LOSSES)} Your own is named module:function.")
    targets = targets_of(loss)
    for place, name in enumerate(metrics):
        known = about(name)
        if known is None and not is_own(name):
            raise ConfigError(
                f"metrics: there is no metric {name!r}. {nearest(name, METRICS)} Your own is named module:function."
            )
        if known and targets and targets not in known.targets:
            fit = [one for one, info in METRICS.items() if targets in info.targets]
            raise ConfigError(
                f"metrics: {name!r} measures {' or '.join(WORDS[one] for one in known.targets)}, and loss {loss!r} has "
                f"{WORDS[targets]}. For these there are: {', '.join(fit)}."
            )
        if name in metrics[:place]:
            raise ConfigError(f"metrics names {name!r} twice.")


def metrics_of(metrics: Sequence[str], targets: Targets) -> tuple[str, ...]:
    """The metrics of a run: those that it names, or the usual ones of its targets."""
    return tuple(metrics) or DEFAULTS[targets]
