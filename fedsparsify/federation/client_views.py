"""The clients' own view of a model: how good it is for each of them, and how unevenly.

In: what every client measured on its own held-out samples. Out: per metric, the mean, the worst client and the spread,
as the ledger's column `client_views` holds them. A simulation and a Flower server both call `client_views`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..tasks import about
from ..training.objective import Evaluation

LOSSES = frozenset({"loss", "error", "mse", "rmse", "mae", "mape", "nll", "perplexity", "brier"})
MOST_LISTED = 100  # clients whose own values stand in the ledger; with more, a history of many rounds would be too long


@dataclass(frozen=True)
class ClientEvaluation:
    """What one client measured: each metric by its name, on so many samples."""

    samples: int
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, samples: int, evaluation: Evaluation) -> ClientEvaluation:
        """What a worker's evaluation says."""
        accuracy = {} if evaluation.accuracy is None else {"accuracy": evaluation.accuracy}
        return cls(samples, {**accuracy, **evaluation.metrics, "loss": evaluation.loss})


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of the metric is a better one; of a user's own, the words of its name decide."""
    if (known := about(metric)) is not None:
        return not known.higher
    words = metric.rpartition(":")[2].lower().replace("-", "_").split("_")
    return bool(LOSSES & {*words})


def client_views(evaluations: Mapping[int, ClientEvaluation]) -> dict[str, dict[str, Any]]:
    """Per metric: its mean over clients, weighted by samples; its worst client; its standard deviation over clients.

    In the standard deviation every client counts once. A value that is not finite (a metric that is undefined on a
    client's few samples) does not count; a metric without any finite value is left out.

    Example:
        >>> from fedsparsify.federation.client_views import ClientEvaluation, client_views
        >>> views = client_views({
        ...     0: ClientEvaluation(30, {"accuracy": 0.9}),
        ...     1: ClientEvaluation(10, {"accuracy": 0.5}),
        ... })
        >>> {name: value for name, value in views["accuracy"].items() if name != "by_client"}
        {'mean': 0.8, 'worst': 0.5, 'worst_client': 1, 'spread': 0.2, 'clients': 2}
        >>> views["accuracy"]["by_client"]
        {'client 0': 0.9, 'client 1': 0.5}
    """
    names = dict.fromkeys(name for one in evaluations.values() for name in one.metrics)
    made = {name: _view(name, evaluations) for name in names}
    return {name: view for name, view in made.items() if view}


def seen_by_clients(server: Evaluation | None, evaluations: Mapping[int, ClientEvaluation]) -> Evaluation:
    """The evaluation of a round that clients took part in.

    Without a test set of the server's own, its accuracy and loss are the clients' means, weighted by samples.
    """
    views = client_views(evaluations)
    if server is not None:
        return replace(server, client_views=views)
    names = dict.fromkeys(name for one in evaluations.values() for name in one.metrics)
    means = {name: float(views[name]["mean"]) if name in views else math.nan for name in names}
    accuracy, loss = means.pop("accuracy", None), means.pop("loss", math.nan)
    return Evaluation(accuracy, loss, means, views)


def _view(metric: str, evaluations: Mapping[int, ClientEvaluation]) -> dict[str, Any]:
    known = {
        client: one
        for client, one in sorted(evaluations.items())
        if one.samples > 0 and math.isfinite(one.metrics.get(metric, math.nan))
    }
    if not known:
        return {}
    clients = list(known)
    values = np.array([one.metrics[metric] for one in known.values()], np.float64)
    weights = np.array([one.samples for one in known.values()], np.float64)
    worst = int(values.argmax() if lower_is_better(metric) else values.argmin())
    view: dict[str, Any] = {
        "mean": _short(float(values @ weights / weights.sum())),
        "worst": _short(float(values[worst])),
        "worst_client": clients[worst],
        "spread": _short(float(values.std())),
        "clients": len(clients),
    }
    if len(clients) <= MOST_LISTED:
        view["by_client"] = {
            f"client {client}": _short(float(value)) for client, value in zip(clients, values, strict=True)
        }
    return view


def _short(value: float) -> float:
    """Nine significant digits: more than float32 has, and free of float64's last bits."""
    return float(f"{value:.9g}")
