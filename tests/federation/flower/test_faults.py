"""Whatever a client does, the round goes on without it, and the ledger says why."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import EVERY_METHOD, small_model
from fake import FakeGrid, play
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedsparsify import RunConfig, run
from fedsparsify.average import Tally
from fedsparsify.cli.progress import summary_rows
from fedsparsify.data import load_dataset, partition
from fedsparsify.errors import ClientError, RunError
from fedsparsify.federation.flower import server, server_app
from fedsparsify.federation.flower.client import Node
from fedsparsify.federation.flower.client_app import app
from fedsparsify.federation.flower.messages import RECORD, Answer, Question
from fedsparsify.federation.flower.overdue import Overdue, until_overdue
from fedsparsify.federation.ledger import read_history
from fedsparsify.federation.lock import held
from fedsparsify.model import SparseModel
from fedsparsify.networks import build, layout_of
from fedsparsify.report.environments import environments_of
from fedsparsify.report.load import load_runs
from fedsparsify.report.packed import write_packed
from fedsparsify.wire.codec import encode

CONFIG = RunConfig(clients=3, rounds=3, epochs=1, sparsity=0.9)
QUICK = {"deadline": 0.5, "wait": 0.5, "retries": 0}


def same(one: SparseModel, other: SparseModel) -> bool:
    return bool(np.array_equal(one.mask, other.mask)) and bool(np.allclose(one.weights, other.weights, atol=1e-5))


# So that scores travel, masks regrow, and one-shot pruning has something to tune.
SOON = {
    "prunefl": {"readjust": 2},
    "feddst": {"readjust": 2, "end": 9},
    "fedrts": {"readjust": 2, "end": 9},
    "oneshot-ft": {"tune": 2},
}


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_is_the_same_as_in_the_simulator(tmp_path, method):
    """Through the messages and the nodes' folders, with momentum that stays on the nodes' disks."""
    table = {"name": method} | SOON.get(method, {})
    config = RunConfig(
        method=table, clients=4, participation=0.5, rounds=5, epochs=1, momentum=0.5, keep_optimizer=True
    )
    over, _ = play(tmp_path, config)
    simulated = run(config)
    assert same(over.model, simulated.model)
    assert [e.upload_params for e in over.history] == [e.upload_params for e in simulated.history]
    assert [e.download_bytes for e in over.history] == pytest.approx(
        [e.download_bytes for e in simulated.history], rel=0.02
    )


def broken(make, client=2, round=2):
    """Client 2 answers round 2 with what `make` makes of its answer."""

    def behave(question, work):
        fine = work()
        return make(fine, question) if (question.client, question.round) == (client, round) else [fine]

    return behave


LAYOUT = layout_of(build(CONFIG.network, (1, 8, 8), 10, CONFIG.seed))


DENSE_MODEL = SparseModel.dense(LAYOUT, np.ones(LAYOUT.total, np.float32))


def model_with(value):
    return encode(SparseModel.dense(LAYOUT, np.full(LAYOUT.total, value, np.float32)))


def stale():
    mask = np.arange(LAYOUT.trainable) % 2 == 0
    model = SparseModel.masked(LAYOUT, np.ones(LAYOUT.total, np.float32), mask)
    return encode(model, mask, layout_known=True)


FAULTS = {
    "garbage": (lambda a, q: [replace(a, model=b"garbage" * 100)], "must begin with"),
    "cut off": (lambda a, q: [replace(a, model=a.model[:-9])], "damaged or cut off"),
    "NaN": (lambda a, q: [replace(a, model=model_with(np.nan))], "weights are NaN or infinite"),
    "wrong shape": (lambda a, q: [replace(a, model=encode(small_model([1, 2, 3])))], "not those of the network"),
    "stale mask": (lambda a, q: [replace(a, model=stale())], "difference to mask"),
    "mask of an older round": (lambda a, q: [replace(a, model=encode(DENSE_MODEL))], "entries that are pruned"),
    "too many samples": (lambda a, q: [replace(a, samples=1 << 50)], "it claims"),
    "no time": (lambda a, q: [replace(a, seconds=float("nan"))], "it claims"),
    "old round": (lambda a, q: [replace(a, round=1)], "for round 1"),
    "another client": (lambda a, q: [replace(a, client=0)], "as client 0"),
    "no samples": (lambda a, q: [replace(a, samples=0)], "no samples"),
    "too large": (lambda a, q: [replace(a, model=b"x" * (7 << 20))], "at most"),
    "scores unasked": (lambda a, q: [replace(a, scores=b"no model")], "must begin with"),
    "lacks what nobody needs": (lambda a, q: [replace(a, lacks=b"12345678")], "lacks a mask"),
    "Flower's own error": (lambda a, q: [Error(code=5, reason="it is\ngone")], "it is\\ngone (code 5)"),
    "no record": (lambda a, q: [RecordDict()], "no record"),
    "another kind": (lambda a, q: [RecordDict({RECORD: ConfigRecord({"round": "2"})})], "must be of kind int"),
    "hangs": (lambda a, q: [], "no answer within 0.5 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_that_fails_is_left_out_and_named(tmp_path, fault):
    make, reason = FAULTS[fault]
    round = 3 if "older" in fault else 2  # the first that has pruned entries, or one that has a round after it
    result, _ = play(tmp_path, CONFIG, broken(make, round=round), **QUICK)
    assert [entry.clients for entry in result.history] == [3, *([2, 3] if round == 2 else [3, 2])]
    assert reason in result.history[round - 1].refused["client 2"]
    assert result.model.sparsity == pytest.approx(0.9, abs=1e-4) and result.history[-1].accuracy > 0.4
    kept = read_history(tmp_path / "run/history.jsonl")
    assert kept == result.history


def test_the_rest_of_a_round_is_what_it_would_be_without_the_client(tmp_path):
    make, _ = FAULTS["garbage"]
    one, _ = play(tmp_path / "a", CONFIG, broken(make), **QUICK)
    other, _ = play(tmp_path / "b", CONFIG, broken(lambda a, q: []), **QUICK)
    assert one.model.same_as(other.model)


def test_the_first_of_two_answers_counts(tmp_path):
    twice, _ = play(tmp_path / "a", CONFIG, broken(lambda a, q: [a, replace(a, model=model_with(1.0))]), **QUICK)
    once, _ = play(tmp_path / "b", CONFIG)
    assert twice.model.same_as(once.model)
    assert "twice" in twice.history[1].refused["client 2, again"]


def test_an_answer_after_the_deadline_is_not_taken_for_the_next_round(tmp_path, monkeypatch):
    held = {}
    take = FakeGrid._take

    def late(self, message):
        id = take(self, message)
        question = self.questions[-1] if self.questions else None
        if question and (question.client, question.round) == (2, 2) and id not in held:
            held[id] = self._ready.pop(id)
        elif question and question.round == 3:
            self._ready |= held
        return id

    monkeypatch.setattr(FakeGrid, "_take", late)
    result, _ = play(tmp_path, CONFIG, **QUICK)
    assert [entry.clients for entry in result.history] == [3, 2, 3]
    assert "after the deadline" in result.history[2].refused["client 2, round 2"]


def test_a_client_that_stays_silent_is_asked_less_and_less_often(tmp_path):
    """The round waits for those it asks: at most one deadline in a row is lost to one client."""
    config = replace(CONFIG, rounds=5)
    result, grid = play(
        tmp_path, config, lambda q, work: [] if q.client == 2 else [work()], **QUICK | {"deadline": 0.1}
    )
    assert [q.round for q in grid.questions if q.client == 2] == [1, 2, 4]
    assert [entry.clients for entry in result.history] == [2] * 5
    assert [entry.asked for entry in result.history] == [3, 3, 2, 3, 2]
    assert [entry.answered for entry in result.history] == [2] * 5
    assert result.history[4].refused == {"client 2": "it missed its last deadlines, and is asked again in round 8"}


def test_a_client_that_others_cannot_replace_is_asked_all_the_same(tmp_path):
    def behave(question, work):
        return [] if question.client == 2 and question.round in (2, 3) and next(silent, False) else [work()]

    silent = iter([True, True, True])
    config = replace(CONFIG, min_clients=3)
    result, _ = play(tmp_path, config, behave, deadline=0.1, wait=0.1, retries=3)
    assert [entry.clients for entry in result.history] == [3] * 3


def test_savings_and_summary_count_those_who_took_part(tmp_path):
    """Clients that were away were sent nothing: a dense model would have cost nothing for them either."""
    config = replace(CONFIG, rounds=3, method="fedavg", sparsity=None)
    result, _ = play(tmp_path, config, lambda q, work: [] if q.client == 2 else [work()], **QUICK | {"deadline": 0.1})
    rows = dict(summary_rows(config, result.history, tmp_path / "run/model.fsz"))
    assert rows["clients"] == "2.0 per round on average, 2 to 2 (3 of 3 were wanted), 3 rounds"
    assert "(as many as dense)" in rows["parameters sent"]  # FedAvg sends dense models
    [run], _ = load_runs([tmp_path / "run"])
    assert run.exchanges * run.total == run.sent_params[-1]
    packed, _ = load_runs(write_packed(environments_of([run]), tmp_path / "packed"))
    assert packed[0].exchanges == run.exchanges == 14


def test_a_refused_client_does_not_count_as_present(tmp_path, monkeypatch):
    """The run waits for another client, where it used to repeat the round at once and end."""
    took = []

    def here(self):  # client 2 joins after the first try
        return [100, 101, 102] if len(took) > 1 else [100, 101]

    def behave(question, work):
        took.append((question.round, question.client))
        return [replace(work(), model=b"garbage")] if question.client == 1 else [work()]

    monkeypatch.setattr(FakeGrid, "get_node_ids", here)
    config = replace(CONFIG, min_clients=2, rounds=2)
    result, _ = play(tmp_path, config, behave, deadline=5, wait=1.0, retries=0)
    assert [entry.clients for entry in result.history] == [2, 2]
    assert [client for round, client in took if round == 1] == [0, 1, 0, 1, 2]


def test_too_few_usable_answers_say_why_without_contradiction(tmp_path):
    config = replace(CONFIG, min_clients=3)
    garbage = FAULTS["garbage"][0]
    with pytest.raises(ClientError) as raised:
        play(tmp_path / "a", config, broken(garbage), **QUICK)
    assert str(raised.value).count("client 2: ") == 1 and "round 2: 2 of at least 3 clients" in str(raised.value)
    assert "no client answered" not in str(raised.value) and "lower lr" not in str(raised.value)
    with pytest.raises(ClientError, match=r"NaN or infinite\)\. .*training diverged: lower lr"):
        play(tmp_path / "b", config, broken(FAULTS["NaN"][0]), **QUICK)


def test_a_node_gives_up_questions_that_are_overdue():
    with until_overdue(time.time(), 1.0):
        pass
    with pytest.raises(Overdue, match="not ready 2 s after the question"), until_overdue(time.time() - 8, 2):
        pytest.fail("it must not begin")
    began = time.monotonic()
    with pytest.raises(Overdue), until_overdue(time.time() - 5.9, 1):
        time.sleep(20)
    assert time.monotonic() - began < 10
    with until_overdue(time.time() + 100, 1.0):  # a clock that is behind the server's
        pass


def test_an_overdue_question_is_not_trained_for(tmp_path, monkeypatch):
    monkeypatch.setattr(Node, "answer", lambda *a: pytest.fail("it must not train"))
    grid = FakeGrid(tmp_path, {}, 1)
    message = Message(Question(3, 0, b"model", seconds=1.0).content(), 100, "train")
    message.metadata.__dict__["_created_at"] = time.time() - 60
    context = Context(1, 100, {"folder": str(tmp_path), "client": 0}, RecordDict(), grid.settings)
    answer = Answer.read(app(message, context).content)
    assert (answer.round, answer.client) == (3, 0) and "gave it up for the next one" in answer.fault


def test_too_few_answers_are_asked_for_again(tmp_path):
    tries = []

    def behave(question, work):
        tries.append((question.round, question.client))
        failing = question.round == 2 and tries.count((2, question.client)) == 1 and question.client
        return [] if failing else [work()]

    config = replace(CONFIG, min_clients=3)
    result, _ = play(tmp_path / "a", config, behave, **QUICK | {"retries": 1})
    undisturbed, _ = play(tmp_path / "b", config)
    assert result.model.same_as(undisturbed.model) and result.history[1].refused == {}


def test_then_the_run_stops_and_can_be_resumed(tmp_path):
    config = replace(CONFIG, min_clients=3, momentum=0.5, keep_optimizer=True)
    with pytest.raises(ClientError, match=r"round 2: 2 of at least 3 .*client 2: no answer within"):
        play(tmp_path / "a", config, broken(lambda a, q: []), **QUICK)
    with pytest.raises(RunError, match="already holds a run"):
        play(tmp_path / "a", config)
    resumed, grid = play(tmp_path / "a", config, resume=True)
    undisturbed, _ = play(tmp_path / "b", config)
    assert resumed.model.same_as(undisturbed.model)  # nodes that trained round 2 already go back to their old momentum
    assert {question.round for question in grid.questions} == {2, 3}


def test_clients_that_are_not_connected(tmp_path, monkeypatch):
    start = FakeGrid.__init__

    def without(self, *arguments):
        start(self, *arguments)
        self.connected.discard(101)

    monkeypatch.setattr(FakeGrid, "__init__", without)
    result, _ = play(tmp_path, CONFIG, **QUICK)
    assert [entry.clients for entry in result.history] == [2, 2, 2]
    assert result.history[0].refused == {"client 1": "it is not connected"}


def test_a_node_that_lost_its_folder_gets_everything(tmp_path):
    def behave(question, work):
        if (question.client, question.round) == (0, 3) and (tmp_path / "nodes/100").exists():
            shutil.rmtree(tmp_path / "nodes/100")
        return [work()]

    result, grid = play(tmp_path, CONFIG, behave)
    third = [(q.client, len(q.model)) for q in grid.questions if q.round == 3]
    assert [client for client, _ in third] == [0, 1, 2, 0]
    assert result.history[2].client_bytes["client 0"][0] == third[0][1] + third[3][1]
    undisturbed, _ = play(tmp_path / "b", CONFIG)
    assert result.model.same_as(undisturbed.model)


def test_numbers(tmp_path, monkeypatch):
    """Nodes without a number get a free one; a number that is taken or out of range is refused."""
    start, take = FakeGrid.__init__, FakeGrid._take

    def renumbered(self, *arguments):
        start(self, *arguments)
        self.clients = {100: 1, 101: None, 102: None, 103: 1, 104: 7}
        self.connected = {100, 101, 102}

    def joining(self, message):
        self.connected |= {103, 104}
        return take(self, message)

    monkeypatch.setattr(FakeGrid, "__init__", renumbered)
    monkeypatch.setattr(FakeGrid, "_take", joining)
    result, grid = play(tmp_path, CONFIG)
    assert [entry.clients for entry in result.history] == [3, 3, 3]
    assert {question.client for question in grid.questions} == {0, 1, 2}
    assert same(result.model, run(CONFIG).model)


def test_a_model_is_decoded_one_at_a_time(tmp_path, monkeypatch):
    """The merge takes an answer before the next is decoded; in round 1, once nine norms or all are known."""
    order = []
    update = server.Networked._update
    monkeypatch.setattr(server.Networked, "_update", lambda *a: order.append("decode") or update(*a))
    add = Tally.add
    monkeypatch.setattr(Tally, "add", lambda *a, **k: order.append("merge") or add(*a, **k))
    play(tmp_path, replace(CONFIG, rounds=2))
    assert order == ["decode"] * 3 + ["merge"] * 3 + ["decode", "merge"] * 3


def test_the_wire_may_round(tmp_path):
    config = replace(CONFIG, wire_precision="fp16")
    over, _ = play(tmp_path, config)
    assert same(over.model, run(config).model)


def poisoned():
    """Digits, with samples for client 2 that no training survives."""
    digits = load_dataset("digits")
    x = digits.x_train.copy()
    x[partition(digits.y_train, 3, "iid", 1990)[2]] = 3e38
    return replace(digits, x_train=x, name="poisoned")


@pytest.mark.parametrize("method", ["fedsparsify-local", "grasp", "feddst"])
def test_a_node_that_diverges_is_left_out_as_in_the_simulator(tmp_path, method):
    table = {"name": method, "sparsity": 0.8} | {"grasp": {"probe": "all"}, "feddst": {"readjust": 1, "end": 9}}.get(
        method, {}
    )
    config = RunConfig(
        data=f"{__name__}:poisoned", network="fc", lr=0.1, batch_size=32, clients=3, rounds=2, epochs=1, method=table
    )
    over, _ = play(tmp_path, config, **QUICK)
    assert [entry.clients for entry in over.history] == [entry.clients for entry in run(config).history]
    assert all(list(entry.refused) == ["client 2"] for entry in over.history)
    assert all("NaN or infinite" in entry.refused["client 2"] for entry in over.history)


def test_what_a_node_says_of_its_own_fault_is_in_the_ledger(tmp_path):
    over, _ = play(tmp_path, CONFIG, broken(lambda a, q: [replace(a, fault="no scores\x1b[31m")]), **QUICK)
    assert [entry.refused for entry in over.history] == [{}, {"client 2": "no scores\\x1b[31m"}, {}]


def test_a_second_server_app_waits_a_while_and_says_who_holds_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app, "ENDING_SECONDS", 0.01)
    with held(tmp_path / "run"), pytest.raises(RunError, match=r"run is in use by process \d+ on"):
        play(tmp_path, CONFIG, **QUICK)
