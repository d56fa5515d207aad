"""Metrics: literal values, scikit-learn's definitions, and what cannot be measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsparsify.errors import ConfigError, ModelError
from fedsparsify.tasks import METRICS
from fedsparsify.training.metrics import make_metrics

LOGITS = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0], [1.0, 2.0, 0.0], [0.0, 1.0, 2.0]])
CLASSES = torch.tensor([0, 1, 0, 1])
VALUES, TRUE = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 3.0, 2.0])
YES, LABELS = torch.tensor([[1.0, -1.0], [2.0, 3.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])


def value(name: str, targets: str, output: torch.Tensor, target: torch.Tensor) -> float:
    (metric,) = make_metrics([name], targets)
    return metric(output, target)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("accuracy", 0.5), ("top-1", 0.5), ("top-2", 1.0), ("top-9", 1.0), ("balanced-accuracy", 0.5), ("micro-f1", 0.5)],
)
def test_classes(name, expected):
    assert value(name, "classes", LOGITS, CLASSES) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "expected"), [("mse", 5 / 3), ("rmse", (5 / 3) ** 0.5), ("mae", 1.0), ("r2", -1.5)])
def test_values(name, expected):
    assert value(name, "values", VALUES, TRUE) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "expected"), [("accuracy", 0.5), ("label-accuracy", 0.75), ("macro-f1", 0.5)])
def test_labels(name, expected):
    assert value(name, "labels", YES, LABELS) == pytest.approx(expected)


def test_as_scikit_learn_defines_them():
    from sklearn import metrics as theirs

    rng = np.random.default_rng(0)
    logits, y = rng.standard_normal((50, 4)), rng.integers(0, 4, 50)
    numbers, true = rng.standard_normal((50, 2)), rng.standard_normal((50, 2))
    yes = rng.random((50, 3)) < 0.4
    predicted, shares = logits.argmax(1), np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = {
        ("accuracy", "classes"): theirs.accuracy_score(y, predicted),
        ("top-2", "classes"): theirs.top_k_accuracy_score(y, logits, k=2),
        ("balanced-accuracy", "classes"): theirs.balanced_accuracy_score(y, predicted),
        ("macro-f1", "classes"): theirs.f1_score(y, predicted, average="macro"),
        ("micro-f1", "classes"): theirs.f1_score(y, predicted, average="micro"),
        ("macro-precision", "classes"): theirs.precision_score(y, predicted, average="macro"),
        ("macro-recall", "classes"): theirs.recall_score(y, predicted, average="macro"),
        ("mean-iou", "classes"): theirs.jaccard_score(y, predicted, average="macro"),
        ("auc", "classes"): theirs.roc_auc_score(y, shares, multi_class="ovr"),
        ("accuracy", "labels"): theirs.accuracy_score(yes, logits[:, :3] > 0),
        ("label-accuracy", "labels"): 1 - theirs.hamming_loss(yes, logits[:, :3] > 0),
        ("macro-f1", "labels"): theirs.f1_score(yes, logits[:, :3] > 0, average="macro"),
        ("micro-f1", "labels"): theirs.f1_score(yes, logits[:, :3] > 0, average="micro"),
        ("macro-precision", "labels"): theirs.precision_score(yes, logits[:, :3] > 0, average="macro"),
        ("macro-recall", "labels"): theirs.recall_score(yes, logits[:, :3] > 0, average="macro"),
        ("mean-iou", "labels"): theirs.jaccard_score(yes, logits[:, :3] > 0, average="macro"),
        ("auc", "labels"): theirs.roc_auc_score(yes, logits[:, :3]),
        ("average-precision", "labels"): theirs.average_precision_score(yes, logits[:, :3]),
        ("mse", "values"): theirs.mean_squared_error(true, numbers),
        ("rmse", "values"): theirs.mean_squared_error(true, numbers) ** 0.5,
        ("mae", "values"): theirs.mean_absolute_error(true, numbers),
        ("r2", "values"): theirs.r2_score(true, numbers),
    }
    known = {(name, kind) for name, about in METRICS.items() for kind in about.targets}
    assert known == ({*expected} - {("top-2", "classes")}) | {("top-5", "classes")}
    given = {"classes": (logits, y), "labels": (logits[:, :3], yes.astype(float)), "values": (numbers, true)}
    for (name, kind), wanted in expected.items():
        output, target = map(torch.from_numpy, given[kind])
        assert value(name, kind, output, target) == pytest.approx(wanted, abs=1e-9), (name, kind)


def test_a_class_per_pixel():
    output = torch.zeros(1, 3, 2, 2)
    output[0, 1] = 1.0  # every pixel is called class 1
    target = torch.tensor([[[1, 1], [1, 2]]])
    assert value("accuracy", "classes", output, target) == 0.75
    assert value("mean-iou", "classes", output, target) == pytest.approx((3 / 4 + 0) / 2)


def test_what_cannot_be_measured_is_nan():
    assert math.isnan(value("auc", "classes", LOGITS[:, :2], torch.zeros(4, dtype=torch.int64)))
    assert math.isnan(value("r2", "values", VALUES, torch.ones(3)))
    assert math.isnan(value("macro-f1", "labels", YES * math.nan, LABELS))


def test_a_metric_of_a_users_own(elsewhere):
    (elsewhere / "own_metrics.py").write_text(
        "def worst(output, target):\n    return (output - target).abs().max()\nworst.higher_is_better = False\n"
        "def broken(output, target):\n    return output.no_such_thing\n"
    )
    (worst,) = make_metrics(["own_metrics:worst"], "values")
    assert (worst(VALUES, TRUE), worst.higher) == (2.0, False)
    with pytest.raises(ModelError, match=r"metric 'own_metrics:broken' failed on outputs \(3, 1\).*no_such_thing"):
        value("own_metrics:broken", "values", VALUES, TRUE)
    with pytest.raises(ConfigError, match=r"has no 'wosrt'\. Did you mean 'worst'"):
        make_metrics(["own_metrics:wosrt"], "values")


@pytest.mark.slow
def test_a_metric_of_torchmetrics():
    (theirs,) = make_metrics(["torchmetrics:MeanAbsoluteError"], "values")
    assert (theirs(VALUES, TRUE), theirs(VALUES, TRUE), theirs.higher) == (1.0, 1.0, False)


def test_without_scikit_learn_the_metric_and_the_remedy_are_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    assert value("r2", "values", VALUES, TRUE) == pytest.approx(-1.5)
    with pytest.raises(ConfigError, match=r"'auc' needs scikit-learn: pip install 'fedsparsify\[metrics\]'"):
        make_metrics(["auc"], "classes")
