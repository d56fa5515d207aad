"""Metrics of a run: what its models are measured by, beside the loss.

In: a network's outputs for all test samples, and their targets, as tensors on the CPU. Out: one number each. What takes
a line is written here; the others are scikit-learn's. A user's own is `module:function` of outputs and targets; an
attribute `higher_is_better` of it, as torchmetrics has them, may say False.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, ModelError
from ..plugins import load_named
from ..tasks import METRICS, Targets, higher_is_better, is_own
from ..text import described
from .losses import aligned

Function = Callable[[torch.Tensor, torch.Tensor], object]


@dataclass(frozen=True)
class Metric:
    """A metric by its name in the ledger."""

    name: str
    function: Function
    higher: bool

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> float:
        """Its value; an error names the metric."""
        try:
            value = self.function(aligned(output, target), target)
            return float(value)  # type: ignore[arg-type]
        except Exception as error:  # a user's function may raise anything
            raise ModelError(
                f"metric {self.name!r} failed on outputs {tuple(output.shape)} and targets {tuple(target.shape)}: "
                f"{described(error)}."
            ) from error


def make_metrics(names: Sequence[str], targets: Targets) -> tuple[Metric, ...]:
    """The metrics of these names, ready to be called."""
    return tuple(_make(name, targets) for name in names)


def _make(name: str, targets: Targets) -> Metric:
    if is_own(name):
        found = load_named(name, {}, "metric")
        higher = getattr(found, "higher_is_better", None)
        if isinstance(found, type):  # such as torchmetrics:MeanSquaredError
            found = _fresh(found)
        if not callable(found):
            raise ConfigError(f"metric {name!r} must name a function of outputs and targets. Received: {found!r:.80}.")
        return Metric(name, found, higher is not False)
    if name.startswith("top-"):
        return Metric(name, _top(int(name.removeprefix("top-"))), True)
    known = ONE_LINE.get((name, targets))
    if known is None:
        try:
            import sklearn.metrics
        except ImportError as error:
            raise ConfigError(
                f"metric {name!r} needs scikit-learn: pip install 'fedsparsify[metrics]'. ({error})"
            ) from error
        known = _by_sklearn(sklearn.metrics, name, targets)
    return Metric(name, known, higher_is_better(name))


def _fresh(kind: Callable[[], Any]) -> Function:
    """A class as a function: a new object for every call, so that nothing is summed up over rounds."""
    return lambda output, target: kind()(output, target)


def correct(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Which classes are right: (n, classes, …) beside (n, …)."""
    return output.argmax(1) == target


def _share(answers: torch.Tensor) -> float:
    return float(answers.double().mean())


def _top(count: int) -> Function:
    def share(output: torch.Tensor, target: torch.Tensor) -> float:
        best = output.topk(min(count, output.shape[1]), 1).indices
        return _share((best == target.unsqueeze(1)).any(1))

    return share


def _r2(output: torch.Tensor, target: torch.Tensor) -> float:
    """Mean over the values of a sample, as scikit-learn has it; NaN for a value that is the same in all samples."""
    o, t = (x.double().reshape(len(x), -1) for x in (output, target))
    spread = ((t - t.mean(0)) ** 2).sum(0)
    return float((1 - ((o - t) ** 2).sum(0) / torch.where(spread > 0, spread, math.nan)).mean())


ONE_LINE: dict[tuple[str, Targets], Function] = {
    ("accuracy", "classes"): lambda o, t: _share(correct(o, t)),
    ("accuracy", "labels"): lambda o, t: _share(((o > 0) == (t > 0.5)).reshape(len(t), -1).all(1)),
    ("label-accuracy", "labels"): lambda o, t: _share((o > 0) == (t > 0.5)),
    ("mse", "values"): lambda o, t: ((o - t).double() ** 2).mean(),
    ("rmse", "values"): lambda o, t: ((o - t).double() ** 2).mean().sqrt(),
    ("mae", "values"): lambda o, t: (o - t).double().abs().mean(),
    ("r2", "values"): _r2,
}


def _by_sklearn(metrics: Any, name: str, targets: Targets) -> Function:
    """A metric of scikit-learn's, of classes or labels."""
    average = {"average": "micro" if name.startswith("micro") else "macro", "zero_division": 0.0}
    functions: dict[str, Callable[..., object]] = {
        "macro-f1": metrics.f1_score,
        "micro-f1": metrics.f1_score,
        "macro-precision": metrics.precision_score,
        "macro-recall": metrics.recall_score,
        "mean-iou": metrics.jaccard_score,
    }

    def of_answers(output: torch.Tensor, target: torch.Tensor) -> object:
        predicted, true = _answers(output, target, targets)
        if name == "balanced-accuracy":
            return metrics.balanced_accuracy_score(true, predicted)
        return functions[name](true, predicted, **average)

    def of_scores(output: torch.Tensor, target: torch.Tensor) -> object:
        scores, true = _scores(output, target, targets)
        if name == "average-precision":
            return metrics.average_precision_score(true, scores)
        if targets == "labels":
            return metrics.roc_auc_score(true, scores)
        if scores.shape[1] == 2:
            return metrics.roc_auc_score(true, scores[:, 1])
        return metrics.roc_auc_score(true, scores, multi_class="ovr", labels=np.arange(scores.shape[1]))

    return _undefined_is_nan(of_scores if name in ("auc", "average-precision") else of_answers)


def _undefined_is_nan(function: Function) -> Function:
    """NaN where samples lack a class that the metric needs: scikit-learn warns, or raises ValueError."""

    def value(output: torch.Tensor, target: torch.Tensor) -> object:
        if not bool(output.isfinite().all()):
            return math.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return function(output, target)
            except ValueError:
                return math.nan

    return value


def _answers(output: torch.Tensor, target: torch.Tensor, targets: Targets) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predicted and true classes, flat; or labels, (n, labels)."""
    if targets == "classes":
        return output.argmax(1).reshape(-1).numpy(), target.reshape(-1).numpy()
    predicted, true = ((x > y).reshape(len(x), -1).numpy() for x, y in ((output, 0), (target, 0.5)))
    return _flat_if_one(predicted.astype(int)), _flat_if_one(true.astype(int))


def _scores(output: torch.Tensor, target: torch.Tensor, targets: Targets) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities of classes, (n, classes), or logits of labels; and what is true."""
    if targets == "classes":
        flat = output.double().movedim(1, -1).reshape(-1, output.shape[1])
        return flat.softmax(1).numpy(), target.reshape(-1).numpy()
    scores, true = output.reshape(len(output), -1).numpy(), (target > 0.5).reshape(len(target), -1).numpy()
    return _flat_if_one(scores), _flat_if_one(true.astype(int))


def _flat_if_one(table: NDArray[Any]) -> NDArray[Any]:
    return table[:, 0] if table.shape[1] == 1 else table


assert {name for name, _ in ONE_LINE} <= {*METRICS}
