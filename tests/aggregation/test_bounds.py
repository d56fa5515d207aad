from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import RunConfig, Update, run
from fedsparsify.aggregation import Aggregator, MergeSettings
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.methods import FedAvg
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.training.worker import Evaluation


class Rounds:
    """A federation whose clients answer, round by round, with given updates."""

    def __init__(self, *rounds):
        self.rounds = rounds

    def ask(self, method, round, model, sent=None):
        for client, update in enumerate(self.rounds[round - 1]):
            made = update if isinstance(update, Update) else Update(shifted(model, update), 10, 0.5)
            yield Update(made.model, made.samples, made.loss, client)

    def evaluate(self, model):
        return Evaluation(0.5, 1.0)


def shifted(model, by):
    return SparseModel(model.layout, model.weights + np.float32(by), model.mask)


def entries(*rounds, start=(0.0,), **settings):
    aggregator = Aggregator(MergeSettings(**settings))
    method = FedAvg(rounds=len(rounds))
    start = start if isinstance(start, SparseModel) else small_model(start)
    played = run_rounds(Rounds(*rounds), method, start, 1, len(rounds), 0, aggregator=aggregator)
    return [(model, entry) for model, entry, _ in played]


def test_a_long_update_is_shortened_from_the_first_round_on_and_named():
    [(model, entry)] = entries([1, 1.5, 2e6])
    assert model.weights.tolist() == [pytest.approx((1 + 1.5 + 4 * 1.5) / 3)]
    assert list(entry.bounded) == ["client 2"]
    assert "1.33e+06 times as long as the median of 1.5" in entry.bounded["client 2"]
    assert (entry.clients, entry.refused) == (3, {})


def test_of_two_clients_the_smaller_norm_is_the_measure():
    [(model, _)] = entries([1, 1e6])
    assert model.weights.tolist() == [2.5]


def test_recent_rounds_are_the_measure_for_few_clients():
    (_, first), (model, second) = entries([1, 1, 1], [100, 100, 1])
    assert (list(first.bounded), list(second.bounded)) == ([], ["client 0", "client 1"])
    assert model.weights.tolist() == [1 + 3]  # (4 + 4 + 1) / 3 after the first round's 1


def test_many_clients_that_all_move_further_are_not_bounded():
    (_, first), (model, second) = entries([1] * 10, [100] * 9 + [1e6])
    assert (list(first.bounded), list(second.bounded)) == ([], ["client 9"])
    assert model.weights.tolist() == [1 + (900 + 400) / 10]


def test_a_bound_of_0_bounds_nothing_and_clients_that_do_not_move_are_no_measure():
    [(model, entry)] = entries([1, 1e6], norm_bound=0)
    assert (model.weights.tolist(), entry.bounded) == ([500_000.5], {})
    [(model, entry)] = entries([0, 0, 1])
    assert (model.weights.tolist(), entry.bounded) == ([pytest.approx(1 / 3)], {})


def test_samples_are_capped_and_the_claim_is_named():
    claim = Update(small_model([4.0]), samples=10**12, loss=1.0)
    [(model, entry)] = entries([1, 1, claim], max_samples=20)
    assert model.weights.tolist() == [pytest.approx((10 + 10 + 80) / 40)]
    assert entry.bounded == {"client 2": "it claims 1,000,000,000,000 samples; 20 are counted"}
    assert entry.updates["samples"] == [10, 10, 20]


def test_a_client_may_break_two_bounds():
    [(_, entry)] = entries([1, 1, Update(small_model([1e6]), 10**6)], max_samples=20)
    assert "samples; 20 are counted; its update is 1e+06 times" in entry.bounded["client 2"]


NORMED = Layout((TensorSpec("w", (1,)),), (TensorSpec("norm.running_mean", (1,)), TensorSpec("norm.running_var", (2,))))


def normed(weight, mean, *variances):
    return SparseModel(NORMED, np.array([weight, mean, *variances], np.float32), np.ones(1, np.bool_))


def test_negative_variances_are_refused_and_others_bounded():
    bad = Update(normed(1, 0, 1, -0.5), 10)
    wild = Update(normed(1, 2e6, 1, 1), 10)
    good = Update(normed(1, 1, 2, 2), 10)
    [(model, entry)] = entries([good, bad, wild, good], start=normed(0, 0, 1, 1))
    assert entry.refused == {"client 1": "its variance 'norm.running_var' is negative (-0.5)"}
    assert "the update of its statistics is 1.15e+06 times as long" in entry.bounded["client 2"]
    assert abs(model.weights[1]) < 4
    assert entry.updates["client"] == [0, 2, 3]
    assert entry.updates["statistics_norm"][0] == pytest.approx(3**0.5)
    nan = Update(normed(1, 0, 1, np.nan), 10)
    [(_, entry)] = entries([good, nan], start=normed(0, 0, 1, 1))
    assert "NaN" in entry.refused["client 1"]


def test_the_ledger_says_who_stood_out():
    model = small_model([0, 0, 0])
    answers = [
        Update(small_model(w), 10, loss) for w, loss in [([1, 1, 0], 0.5), ([1, 0, 1], np.nan), ([-3, -3, 0], 2.0)]
    ]
    [(after, entry)] = entries(answers, start=model)
    assert after.weights.tolist() == pytest.approx([-1 / 3, -2 / 3, 1 / 3])
    assert entry.updates["norm"] == [1.41421, 1.41421, 4.24264]
    assert entry.updates["cosine"] == [-0.866, 0.0, 0.866]
    assert entry.train_loss == 1.25  # of those that have one


def test_a_resumed_run_is_bounded_as_one_that_never_stopped(tmp_path):
    config = RunConfig(rounds=3, epochs=1, clients=3, norm_bound=1.0, merge="median")
    whole = run(config, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        run(config, tmp_path / "part", on_round=lambda entry: 1 // (2 - entry.round))
    resumed = run(config, tmp_path / "part", resume=True)
    assert np.array_equal(whole.model.weights, resumed.model.weights)
    assert [entry.updates for entry in whole.history] == [entry.updates for entry in resumed.history]
    assert any(entry.bounded for entry in whole.history)
    line = json.loads((tmp_path / "whole" / "history.jsonl").read_text().splitlines()[-1])
    assert list(line["updates"]) == ["client", "samples", "loss", "norm", "cosine"]


def test_honest_runs_are_the_same_with_bounds_as_without():
    results = [run(RunConfig(rounds=2, epochs=1, clients=12, split="dirichlet:0.5", norm_bound=b)) for b in (4.0, 0.0)]
    assert np.array_equal(results[0].model.weights, results[1].model.weights)
    assert not any(entry.bounded for entry in results[0].history)
