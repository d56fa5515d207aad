"""Clients of a real federation evaluate the global model on samples that they hold out."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from fake import FakeGrid, play
from flwr.app import RecordDict

from fedsparsify import RunConfig, run
from fedsparsify.errors import WireError
from fedsparsify.federation.flower.messages import Evaluated
from fedsparsify.federation.ledger import read_history
from fedsparsify.wire.codec import known_name

CONFIG = RunConfig(clients=3, rounds=3, epochs=1, sparsity=0.9, evaluate="clients", split="classes:4")
QUICK = {"deadline": 0.3, "wait": 0.3, "retries": 0}


@pytest.mark.parametrize("who", ["clients", "both"])
def test_the_same_views_as_in_the_simulator(tmp_path, who):
    config = replace(CONFIG, evaluate=who, participation=0.67)
    over, grid = play(tmp_path, config)
    simulated = run(config)
    for mine, theirs in zip(over.history, simulated.history, strict=True):
        assert mine.accuracy == pytest.approx(theirs.accuracy, abs=0.01)
        for metric in ("accuracy", "loss"):
            mine_view, their_view = mine.client_views[metric], theirs.client_views[metric]
            assert mine_view["mean"] == pytest.approx(their_view["mean"], abs=0.01)
            assert mine_view["worst"] == pytest.approx(their_view["worst"], abs=0.01)
            assert mine_view["clients"] == 3  # those that a round does not ask evaluate as well
    assert read_history(tmp_path / "run/history.jsonl") == over.history
    np.testing.assert_allclose(over.model.weights, simulated.model.weights, atol=1e-5)  # the same samples held out
    assert len(grid.evaluations) == 9 and over.history[0].asked == 5


def test_a_model_that_was_evaluated_needs_no_mask_for_the_next_round(tmp_path):
    _, grid = play(tmp_path, CONFIG)
    evaluated = {(q.round, q.client): known_name(q.model) for q in grid.evaluations}
    asked = {(q.round, q.client): known_name(q.model) for q in grid.questions}
    assert all(evaluated[key] for key in evaluated)  # the round's mask, from training
    assert all(asked[round, client] not in (None, evaluated[round - 1, client]) for round, client in asked if round > 2)


def answer(**fields):
    def make(question, work):
        reply = work()
        content = replace(Evaluated.read(reply.content), **fields).content()
        reply.content = content
        return [reply]

    return make


FAULTS = {
    "garbage": (answer(metrics="{"), "its metrics are not numbers"),
    "words": (answer(metrics='{"accuracy": "good"}'), "its metrics are not numbers"),
    "a list": (answer(metrics="[1]"), "its metrics are not numbers"),
    "many": (answer(metrics="{" + ",".join(f'"m{i}": 1' for i in range(999)) + "}"), "it sent 999 metrics"),
    "many samples": (answer(samples=1 << 50), "it evaluated on"),
    "no samples": (answer(samples=0), "it evaluated on 0 samples"),
    "another round": (answer(round=99), "for round 99"),
    "a fault": (answer(fault="no scans\x1b today"), "no scans\\x1b today"),
    "no record": (lambda question, work: [emptied(work())], "no record"),
    "hangs": (lambda question, work: [], "no answer within 0.3 s"),
}


def emptied(reply):
    reply.content = RecordDict()
    return reply


def test_a_client_that_cannot_evaluate_is_left_out_of_the_view(tmp_path, monkeypatch):
    """Client 2 has another fault in each round, and none in the last."""
    start, faults = FakeGrid.__init__, list(FAULTS.values())

    def judge(question, work):
        faulty = question.client == 2 and question.round <= len(faults)
        return faults[question.round - 1][0](question, work) if faulty else [work()]

    def judging(self, *arguments):
        start(self, *arguments)
        self.judge = judge

    monkeypatch.setattr(FakeGrid, "__init__", judging)
    result, _ = play(tmp_path, replace(CONFIG, rounds=len(faults) + 1), **QUICK)
    for (name, (_, reason)), entry in zip(FAULTS.items(), result.history, strict=False):
        assert entry.client_views["accuracy"]["clients"] == 2, name
        assert reason in entry.refused["client 2, evaluation"], name
    assert result.history[-1].client_views["accuracy"]["clients"] == 3 and not result.history[-1].refused
    assert {entry.clients for entry in result.history} == {3}


def test_a_node_that_lost_its_masks_evaluates_the_whole_model(tmp_path, monkeypatch):
    start = FakeGrid.__init__

    def forget(question, work):
        if (question.client, question.round) == (1, 2) and known_name(question.model):
            shutil.rmtree(tmp_path / "nodes/101")
        return [work()]

    def judging(self, *arguments):
        start(self, *arguments)
        self.judge = forget

    monkeypatch.setattr(FakeGrid, "__init__", judging)
    result, grid = play(tmp_path, CONFIG)
    assert len(grid.evaluations) == 10 and all(not entry.refused for entry in result.history)


def test_values_that_are_not_finite_do_not_count(tmp_path, monkeypatch):
    start = FakeGrid.__init__

    def judging(self, *arguments):
        start(self, *arguments)
        self.judge = lambda question, work: answer(metrics='{"accuracy": NaN, "loss": Infinity}')(question, work)

    monkeypatch.setattr(FakeGrid, "__init__", judging)
    result, _ = play(tmp_path, CONFIG, **QUICK)
    assert all(entry.client_views == {} and entry.accuracy != entry.accuracy for entry in result.history)


def test_metrics_are_checked_before_they_are_used():
    with pytest.raises(WireError, match="not numbers"):
        Evaluated(1, 1, 5, "[" * 100_000).evaluation()
