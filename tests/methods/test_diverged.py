"""A client that diverges is left out by name, whatever the method makes of its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import EVERY_METHOD, small_model
from torch import nn

from fedsparsify import RunConfig, run
from fedsparsify.data import load_dataset, partition
from fedsparsify.errors import ClientError
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import Fit, Gradual, Score, Update, run_client
from fedsparsify.scores import keep_top

POISONED = 2  # of three clients; not the one that round 0 of prunefl asks
SMALL = {"data": f"{__name__}:poisoned", "network": "fc", "lr": 0.1, "batch_size": 32, "epochs": 1, "clients": 3}


def poisoned():
    """Digits, with samples for one client that no training survives."""
    digits = load_dataset("digits")
    x = digits.x_train.copy()
    x[partition(digits.y_train, 3, "iid", 1990)[POISONED]] = 3e38
    return replace(digits, x_train=x, name="poisoned")


@dataclass(frozen=True, kw_only=True)
class Wary(Gradual):
    """Raises where it sees something that is not a number."""

    def client(self, round, model):
        update = yield Fit(model)
        if not np.isfinite(update.model.weights).all():
            raise RuntimeError("diverged")
        return update


@dataclass(frozen=True, kw_only=True)
class Hiding(Gradual):
    """Purges what is not a number, and sends the rest as if nothing had been."""

    def client(self, round, model):
        update = yield Fit(model)
        good = np.isfinite(update.model.trainable_weights)
        return replace(update, model=model.under(good))


@dataclass(frozen=True, kw_only=True)
class OwnScores(Gradual):
    """Finds no scores for one client, whose weights are fine."""

    def client(self, round, model):
        update = yield Fit(model)
        scores = np.full(model.layout.trainable, np.nan if update.loss > 1e3 else 1.0)
        return update.under(keep_top(scores, self.schedule(round), among=model.mask))


@dataclass(frozen=True, kw_only=True)
class Dividing(Gradual):
    """Divides by zero for one client."""

    def client(self, round, model):
        update = yield Fit(model)
        return replace(update, samples=update.samples // (0 if update.loss > 1e3 else 1))


SETTINGS = {
    "oneshot-ft": {"tune": 1},
    "snip": {"probe": "all"},
    "grasp": {"probe": "all"},
    "prunefl": {"readjust": 1},
    "feddst": {"readjust": 1, "end": 9, "sparsity": 0.8},
    "fedrts": {"readjust": 1, "end": 9, "sparsity": 0.8},
    **{f"{__name__}:{kind.__name__}": {} for kind in (Wary, Hiding)},
}


def check(history):
    for entry in history:
        if entry.clients + len(entry.refused) == 1:
            continue  # round 0 of prunefl
        assert entry.clients == 2
        assert list(entry.refused) == [f"client {POISONED}"]
        assert "NaN or infinite" in entry.refused[f"client {POISONED}"]
        assert np.isfinite(entry.accuracy)


@pytest.mark.parametrize("method", [*EVERY_METHOD, *(name for name in SETTINGS if ":" in name)])
def test_every_method_leaves_a_diverged_client_out(method):
    table = {"name": method} | SETTINGS.get(method, {})
    config = RunConfig(**SMALL, rounds=2, method=table, momentum=0.5, keep_optimizer=True, min_clients=2)
    result = run(config)
    assert result.model.finite
    check(result.history)
    with pytest.raises(
        ClientError, match=rf"round [01]: 2 of at least 3 .*client {POISONED}: .*(weights|scores) are NaN"
    ):
        run(replace(config, min_clients=3))


def answer_of(loss, weights, scores=None):
    return Update(small_model(weights), 1, loss, scores=None if scores is None else np.float32(scores))


def test_a_half_that_cannot_go_on_says_why():
    model = small_model([1, 2, 3, 4])
    for method, says in ((OwnScores(), "scores must be numbers. Received: 4 NaN of 4"), (Dividing(), "by zero")):
        fine = run_client(method.client(1, model), lambda request: answer_of(1.0, [1, 2, 3, 4]))
        assert not fine.fault
        left = run_client(method.client(1, model), lambda request: answer_of(1e6, [1, 2, 3, 4]))
        assert left.fault.startswith("its half of the round failed: ")
        assert says in left.fault


def test_scores_that_are_not_numbers_end_a_half():
    def client():
        yield Score(small_model([1, 2]), by="gradient")
        raise AssertionError("it must not get here")

    for scores in ([np.nan, 1], [1, -np.inf]):
        assert not run_client(client(), lambda request, s=scores: answer_of(1.0, [1, 2], s)).finite


def conv(shape, classes):
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(8, classes))


def test_momentum_of_the_last_round_is_not_trained_in_place():
    """It is written to disk meanwhile, and is what a client that diverges goes on with."""
    config = RunConfig(network=f"{__name__}:conv", rounds=2, epochs=1, clients=2, momentum=0.5, keep_optimizer=True)
    federation = Simulated(config, load_dataset("digits"))
    model = federation.initial()
    list(federation.ask(config.method, 1, model))
    kept = dict(federation.kept)
    before = {client: state["optimizer.momentum"].copy() for client, state in kept.items()}
    list(federation.ask(config.method, 2, model))
    assert all(np.array_equal(kept[client]["optimizer.momentum"], before[client]) for client in before)
