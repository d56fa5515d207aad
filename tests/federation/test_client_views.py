"""Mean, worst and spread over clients, and runs that clients evaluate."""

from __future__ import annotations

import math

from fedsparsify.federation.client_views import ClientEvaluation, client_views, lower_is_better


def test_literal_values():
    views = client_views(
        {
            4: ClientEvaluation(10, {"accuracy": 0.5, "loss": 2.0}),
            0: ClientEvaluation(30, {"accuracy": 0.9, "loss": 1.0}),
        }
    )
    assert views == {
        "accuracy": {
            "mean": 0.8,
            "worst": 0.5,
            "worst_client": 4,
            "spread": 0.2,
            "clients": 2,
            "by_client": {"client 0": 0.9, "client 4": 0.5},
        },
        "loss": {
            "mean": 1.25,
            "worst": 2.0,
            "worst_client": 4,
            "spread": 0.5,
            "clients": 2,
            "by_client": {"client 0": 1.0, "client 4": 2.0},
        },
    }


def test_values_that_are_not_finite_do_not_count():
    views = client_views(
        {
            0: ClientEvaluation(1, {"auc": math.nan, "loss": math.inf}),
            1: ClientEvaluation(1, {"auc": 0.7, "loss": math.nan}),
            2: ClientEvaluation(0, {"auc": 0.1}),
            3: ClientEvaluation(5, {}),
        }
    )
    assert views.keys() == {"auc"}
    assert (views["auc"]["mean"], views["auc"]["worst_client"], views["auc"]["clients"]) == (0.7, 1, 1)


def test_a_large_federation_lists_no_client():
    views = client_views({client: ClientEvaluation(1, {"accuracy": client / 200}) for client in range(101)})
    assert "by_client" not in views["accuracy"] and views["accuracy"]["worst"] == 0


def test_which_way_is_better():
    assert not any(map(lower_is_better, ("accuracy", "macro_f1", "auc", "lossless")))
    assert all(map(lower_is_better, ("loss", "train_loss", "mse", "my.metrics:mean-error")))
