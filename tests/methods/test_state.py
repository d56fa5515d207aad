"""What a method remembers: carried from round to round, through checkpoints and over Flower, under the mask."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from conftest import small_model

from fedsparsify import Fit, RunConfig, option, run
from fedsparsify.errors import MethodError
from fedsparsify.federation.checkpoint import Checkpoint
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.federation.wired import decode_state, encode_state
from fedsparsify.methods import (
    Averaging,
    ClientContext,
    FedAvg,
    Method,
    ServerContext,
    Update,
    ask_client,
    merged,
    tally,
)
from fedsparsify.state import complaint, under
from fedsparsify.training.worker import Evaluation

RNG = np.random.default_rng(0)
MODEL = small_model([1, 2, 0, 4], [True, True, False, True], statistics=[5])


@dataclass(frozen=True, kw_only=True)
class Counting(Method):
    """Counts rounds at the server, and at each client the rounds that it took part in."""

    def client(self, round, model, me):
        update = yield Fit(model)
        turns = me.state.get("turns", 0) + 1
        return update.keep(turns=turns, last=update.model.trainable_weights, draw=float(me.rng.random()))

    def merge(self, round, model, updates, rng, server):
        kept = server.state.get("all", 0.0) + np.ones(model.layout.trainable, np.float32)
        return tally(updates).mean(), {"rounds": server.state.get("rounds", 0) + 1, "all": kept, "few": np.arange(3.0)}


def test_state_flows_through_a_run_and_its_checkpoint(tmp_path):
    config = RunConfig(method=Counting(), clients=4, participation=0.5, rounds=5, epochs=1)
    run(config, tmp_path)
    end = Checkpoint.load(tmp_path / "checkpoint.fsz")
    assert end.server["rounds"] == 5 and set(end.server["all"]) == {5.0} and end.server["few"].tolist() == [0, 1, 2]
    assert sum(state["turns"] for state in end.clients.values()) == 10
    assert all(0 < state["draw"] < 1 and state["last"].any() for state in end.clients.values())


@dataclass(frozen=True, kw_only=True)
class Telling(Averaging):
    """Tells its client's context to the test."""

    def client(self, round, model, me):
        update = yield Fit(model)
        return update.keep(samples=me.samples, ones=int(me.class_counts[1]), classes=len(me.class_counts))


def test_a_client_knows_its_samples_and_classes(tmp_path):
    run(RunConfig(method=Telling(), clients=3, split="classes:4", rounds=1, epochs=1), tmp_path)
    states = Checkpoint.load(tmp_path / "checkpoint.fsz").clients.values()
    assert sum(state["samples"] for state in states) == 1442 and {state["classes"] for state in states} == {10}
    assert 0 < sum(state["ones"] for state in states) < 200


def test_what_is_pruned_is_zero_in_the_state():
    state = under({"m": np.ones(4, np.float32), "whole": np.ones(5), "few": np.ones(2), "n": np.int64(3)}, MODEL)
    assert state["m"].tolist() == [1, 1, 0, 1] and state["whole"].tolist() == [1, 1, 0, 1, 1]
    assert state["few"].tolist() == [1, 1] and state["n"] == 3 and state["whole"].dtype == np.float32
    on_torch = under({"m": np.ones(4, np.float32)}, MODEL.beside(torch.zeros(1)))
    assert isinstance(on_torch["m"], torch.Tensor) and on_torch["m"].tolist() == [1, 1, 0, 1]


def test_what_travels_beside_a_model_is_as_long_as_what_it_keeps():
    sent = under({"a": np.array([1, -2, 3, 4], np.float32), "b": np.array([0, 0, 9, 0.5], np.float32)}, MODEL)
    back = decode_state(encode_state(sent, MODEL), ("a", "b"), MODEL)
    assert {name: array.tolist() for name, array in back.items()} == {"a": [1, -2, 0, 4], "b": [0, 0, 0, 0.5]}
    wide = small_model(np.ones(10_000)).under(np.arange(10_000) % 100 == 0)
    values = np.random.default_rng(1).standard_normal(10_000).astype(np.float32)
    assert len(encode_state({"a": values}, wide)) < 500


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], "a state is a mapping"),
        ({"a b": 1}, "must be an identifier"),
        ({"a": np.ones((2, 2))}, "must be a flat array"),
        ({"a": "word"}, "a flat array or a number. Received: str"),
        ({"a": np.array(["x"])}, "must hold numbers"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_by_name(state, message):
    assert message in complaint(state)

    class Wrong(FedAvg):
        def merge(self, round, model, updates, rng, server):
            return tally(updates).mean(), state

    with pytest.raises(MethodError, match=r"Wrong\.merge must return its state") as error:
        merged(Wrong(), 1, MODEL, [Update(MODEL, 1)], RNG, ServerContext())
    assert message in str(error.value)


def test_what_is_sent_must_be_declared():
    class Undeclared(FedAvg):
        def client(self, round, model, me):
            return (yield Fit(model)).send(control=model.trainable_weights)

    playing = ask_client(Undeclared(), 1, MODEL, ClientContext())
    next(playing)
    with pytest.raises(MethodError, match=r"must send \[\] beside its model, as `uploads` says"):
        playing.send(Update(MODEL, 1))

    class Short(Undeclared):
        uploads = ("control",)

        def client(self, round, model, me):
            return (yield Fit(model)).send(control=np.ones(2, np.float32))

    playing = ask_client(Short(), 1, MODEL, ClientContext())
    next(playing)
    with pytest.raises(MethodError, match=r"must send 'control' as 4 flat numbers"):
        playing.send(Update(MODEL, 1))


@dataclass(frozen=True, kw_only=True)
class Listed(FedAvg):
    """Would remember by itself."""

    memory: list = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Vector(FedAvg):
    """Would remember by itself, in its class."""

    power: float = option(1.0, "an option")
    momentum = np.zeros(3)


@pytest.mark.parametrize(("kind", "name"), [(Listed, "memory"), (Vector, "momentum")])
def test_a_method_that_could_remember_by_itself_is_refused(kind, name):
    with pytest.raises(MethodError, match=rf"{kind.__name__}\.{name} can change"):
        RunConfig(method=kind())


def test_a_broadcast_reaches_every_client_and_is_counted():
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Broadcasting(FedAvg):
        broadcasts = ("control",)

        def client(self, round, model, me):
            seen.append({name: array.tolist() for name, array in me.received.items()})
            return (yield Fit(model))

        def merge(self, round, model, updates, rng, server):
            return tally(updates).mean(), {"control": np.full(4, round, np.float32)}

    class Echo:
        kept: dict = {}  # noqa: RUF012

        def ask(self, method, round, model, sent):
            playing = ask_client(method, round, model, ClientContext(received=sent))
            next(playing)
            with pytest.raises(StopIteration) as done:
                playing.send(Update(model, 1, 0.0, client=0))
            yield done.value.value

        def evaluate(self, model):
            return Evaluation(0.0, 0.0)

    played = list(run_rounds(Echo(), Broadcasting(rounds=2), MODEL, 1, 2, 0))
    assert seen == [{}, {"control": [1, 1, 0, 1]}]
    assert [end.entry.download_params for end in played] == [4, 7]
