from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import RunConfig
from fedsparsify.data import load_dataset
from fedsparsify.errors import ClientError, ConfigError
from fedsparsify.federation.environment import participants
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import FedAvg, FedSparsifyGlobal, Update
from fedsparsify.training.worker import Evaluation


class Scripted:
    """A federation whose clients answer with given weights."""

    kept: dict = {}  # noqa: RUF012

    def __init__(self, *answers):
        self.answers = answers

    def ask(self, method, round, model, sent=None):
        for client, weights in enumerate(self.answers):
            yield Update(small_model(weights), samples=client + 1, loss=1.0, client=client)

    def evaluate(self, model):
        return Evaluation(0.5, 1.0)


def test_entries_count_what_travels():
    method = FedSparsifyGlobal(rounds=2, sparsity=0.5, start=1)
    first, second = [
        entry for _, entry, _ in run_rounds(Scripted([1, 2, 3, 4], [1, 2, 3, 4]), method, small_model([0] * 4), 1, 2, 0)
    ]
    assert (first.nonzero, first.download_params, first.upload_params, first.paper_params) == (4, 8, 8, 16)
    assert (second.nonzero, second.download_params, second.paper_params) == (2, 8, 12)
    assert (second.round, second.target_sparsity, second.sparsity, second.clients) == (2, 0.5, 0.5, 2)
    assert second["accuracy"] == 0.5


class Scoring(FedAvg):
    """Round 0 asks one client for scores."""

    first_round = 0

    def cohort(self, round):
        return None if round else 1

    def begin(self, model):
        return model.under(np.array([True, True, True, False]))


def test_round_0_is_charged_for_what_travels_and_starts_from_the_methods_own_model():
    start = small_model([1, 2, 3, 4], statistics=[5])
    answer, federation = Update(start, 1, 1.0, client=0), Scripted()
    federation.ask = lambda method, round, model, sent: iter([answer if round else answer.only_scores(np.ones(4, "f"))])
    zero, one = [entry for _, entry, _ in run_rounds(federation, Scoring(rounds=1), start, 0, 1, 0)]
    assert (zero.round, zero.clients, zero.download_params, zero.upload_params, zero.paper_params) == (0, 1, 4, 5, 0)
    assert (one.round, one.upload_params) == (1, 5)


def test_a_round_that_asks_few_needs_few():
    federation, start = Scripted([1, 2, 3, 4]), small_model([1, 2, 3, 4])
    [(_, entry, _)] = run_rounds(federation, Scoring(rounds=1), start, 0, 0, 0, min_clients=3)
    assert entry.clients == 1


def test_unusable_scores_are_refused_by_name():
    start = small_model([1, 2])
    scores = [np.array([1, np.nan], np.float32), np.ones(3, np.float32), np.ones(2, np.float32)]
    federation = Scripted()
    answers = [Update(start, 1, 1.0, scores=each, client=client) for client, each in enumerate(scores)]
    federation.ask = lambda method, round, model, sent: iter(answers)
    [(_, entry, _)] = run_rounds(federation, FedAvg(rounds=1), start, 1, 1, 0)
    assert "1 of its scores are NaN or infinite" in entry.refused["client 0"]
    assert "scores of shape (3,) for 2 entries" in entry.refused["client 1"]
    assert entry.clients == 1


def test_nan_and_infinity_are_refused_by_name_and_never_averaged():
    federation = Scripted([1, 2], [np.nan, 2], [5, np.inf], [3, 4])
    [(model, entry, _)] = run_rounds(federation, FedAvg(rounds=1), small_model([0, 0]), 1, 1, 0)
    assert model.weights.tolist() == pytest.approx([2.6, 3.6])  # samples 1 and 4
    assert entry.clients == 2
    assert list(entry.refused) == ["client 1", "client 2"]
    assert "1 of its weights are NaN or infinite" in entry.refused["client 1"]


def test_another_layout_is_refused():
    [(_, entry, _)] = run_rounds(Scripted([1, 2], [1, 2, 3]), FedAvg(rounds=1), small_model([0, 0]), 1, 1, 0)
    assert "layout" in entry.refused["client 1"]


def test_too_few_usable_answers_stop_the_run():
    with pytest.raises(ClientError, match=r"1 of at least 2 clients .*client 1.*lower lr"):
        list(run_rounds(Scripted([1.0], [np.nan]), FedAvg(rounds=1), small_model([0]), 1, 1, 0, min_clients=2))


def test_a_cohort_of_ones_own():
    config = RunConfig(clients=10, participation=0.5)
    assert participants(config, 0, float("inf")) == list(range(10))
    assert {len(participants(config, t, 1)) for t in range(20)} == {1}
    assert len({participants(config, t, 1)[0] for t in range(20)}) > 4


def simulated(**settings) -> Simulated:
    return Simulated(RunConfig(**settings), load_dataset("digits"))


def test_participants_are_drawn_without_replacement_and_differ_by_round():
    config = RunConfig(clients=100, participation=0.1)
    rounds = [participants(config, t) for t in range(1, 50)]
    assert all(len(set(drawn)) == 10 for drawn in rounds)
    assert len({tuple(drawn) for drawn in rounds}) > 40
    assert rounds == [participants(config, t) for t in range(1, 50)]
    assert len({client for drawn in rounds for client in drawn}) > 90


def test_weights_are_over_the_participants():
    settings = {"clients": 20, "participation": 0.1, "split": "dirichlet:0.3", "epochs": 1}
    federation = simulated(**settings)
    method, start = FedAvg(rounds=1), federation.initial()
    updates = list(federation.ask(method, 1, start))
    assert [update.client for update in updates] == participants(RunConfig(**settings), 1)
    assert [update.samples for update in updates] == [federation.parts[update.client].size for update in updates]


def test_a_client_outside_this_round_changes_nothing(monkeypatch):
    alone = list(simulated(clients=4, epochs=1).ask(FedAvg(), 1, simulated(clients=4).initial()))
    again = simulated(clients=4, epochs=1)
    monkeypatch.setattr("fedsparsify.federation.simulated.participants", lambda config, round, cohort: [2])
    [third] = again.ask(FedAvg(), 1, again.initial())
    assert third.model.same_as(alone[2].model)


def test_devices_and_networks_that_do_not_fit():
    with pytest.raises(ConfigError, match="There is: cpu"):
        simulated(device="cuda:7")
    with pytest.raises(ConfigError, match="at least 32 pixels"):
        simulated(network="vgg16")
    with pytest.raises(ConfigError, match=r"must give \(batch, 10\) logits"):
        simulated(network="torch.nn:Identity")


def test_a_network_that_does_not_take_the_samples(elsewhere):
    (elsewhere / "narrow.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(3, 10)\n")
    with pytest.raises(ConfigError, match=r"does not take samples of shape \(1, 8, 8\)"):
        simulated(network="narrow:net")
