"""Mistakes in a user's method become errors that name it, in the simulator and over Flower alike."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import RunConfig
from fedsparsify.errors import ConfigError, MethodError, WireError
from fedsparsify.methods import Fit, Gradual, Method, Score, Update, ask_client, cohort_of, merged, method_class

MODEL, RNG = small_model([1, 2, 3]), np.random.default_rng(0)
OTHER = small_model([1, 2])


def method(**functions) -> Method:
    """A method with these in place of its own."""
    return dataclass(frozen=True, kw_only=True)(type("Mine", (Method,), functions | {"__module__": "mine"}))()


def yields(*requests, returns=None):
    def client(self, round, model):
        for request in requests:  # noqa: UP028, as a tuple can be sent nothing
            yield request
        return returns

    return client


def raises(error):
    def client(self, round, model):
        yield Fit(model)
        raise error

    return client


def sets(self, round, model):
    self.kept = yield Fit(model)
    return self.kept


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (
            yields(),
            r"mine:Mine\.client must yield a request before it returns. Received: None. A client is a generator",
        ),
        (yields(returns=Update(MODEL, 1)), "must yield a request before it returns"),
        (lambda self, round, model: None, "must be a generator. Received: None. A client is a generator, such as"),
        (lambda self, round, model: Update(model, 1), "must be a generator. Received: Update"),
        (lambda self, round, model: [Fit(model)], r"must be a generator. Received: \[Fit"),
        (lambda self, model: None, r"mine:Mine\.client raised TypeError: .*positional argument"),
        (yields(None), "must yield Fit and Score requests. Received: None"),
        (yields(Fit), "must yield Fit and Score requests. Received: <class"),
        (yields(Fit(None)), "a model of the round's layout. Received: None"),
        (yields(Fit(OTHER)), "a model of the round's layout"),
        (yields(Fit(MODEL, epochs=0)), "whole number of epochs, at least 1, or None. Received: 0"),
        (yields(Fit(MODEL, epochs=1.5)), "whole number of epochs"),
        (yields(Fit(MODEL, prox=float("nan"))), "a prox that is a number"),
        (yields(Fit(MODEL, linear=[0.0])), "a linear that is None or .* finite numbers, one per .*Received: 'list'"),
        (yields(Fit(MODEL, linear=np.zeros((2, 2)))), r"an array of shape \(2, 2\) and type float64"),
        (yields(Fit(MODEL, linear=np.zeros(MODEL.layout.trainable, int))), "and type int64"),
        (yields(Fit(MODEL, linear=np.full(MODEL.layout.trainable, np.nan))), "infinite or missing numbers"),
        (yields(Score(MODEL, by="size")), "score by gradient, hessian-gradient or squares. Received: 'size'"),
        (yields(Score(MODEL, by="gradient", per_class=0)), "samples per class"),
        (yields(Score(MODEL, by="gradient", temperature=0)), "a temperature"),
        (yields(Fit(MODEL)), "must return an Update. Received: None"),
        (yields(Fit(MODEL), returns=MODEL), "must return an Update. Received: SparseModel"),
        (yields(Fit(MODEL), returns=Update(None, 1)), "an Update with a SparseModel. Received: None"),
        (yields(Fit(MODEL), returns=Update(MODEL, "x")), "samples and loss are numbers"),
        (yields(Fit(MODEL), returns=Update(MODEL, 1, scores=[1])), "scores are a numpy array or None"),
        (raises(ZeroDivisionError("by zero")), r"client raised ZeroDivisionError: by zero \(.*test_checked.py, line"),
        (
            sets,
            r"client sets an attribute \(FrozenInstanceError: .*'kept'.*A method is frozen: what it remembers goes in",
        ),
    ],
)
def test_a_clients_mistakes(client, says):
    with pytest.raises(MethodError, match=says):
        playing = ask_client(method(client=client), 1, MODEL)
        next(playing)
        playing.send(Update(MODEL, 1))


def test_a_clients_own_refusal_is_left_as_it_is():
    with pytest.raises(WireError, match="mine"):
        playing = ask_client(method(client=raises(WireError("mine"))), 1, MODEL)
        next(playing)
        playing.send(Update(MODEL, 1))


def test_the_cause_is_chained():
    with pytest.raises(MethodError) as caught:
        playing = ask_client(method(client=sets), 1, MODEL)
        next(playing)
        playing.send(Update(MODEL, 1))
    assert isinstance(caught.value.__cause__, FrozenInstanceError)


def reads(value):
    def merge(self, round, model, updates, rng):
        list(updates)
        return value

    return merge


@pytest.mark.parametrize(
    ("merge", "says"),
    [
        (reads(None), r"mine:Mine\.merge must return a SparseModel of the round's layout. Received: None"),
        (reads(OTHER), "must return a SparseModel of the round's layout"),
        (lambda self, round, model, updates, rng: model, "must read all updates before it returns"),
        (lambda self, round, model, updates: model, "merge raised TypeError"),
        (lambda self, *_: setattr(self, "x", 1), "merge sets an attribute"),
    ],
)
def test_a_merges_mistakes(merge, says):
    with pytest.raises(MethodError, match=says):
        merged(method(merge=merge), 1, MODEL, [Update(MODEL, 1)], RNG)


def test_an_error_of_the_clients_is_not_the_merges():
    def failing():
        yield Update(MODEL, 1)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        merged(method(), 1, MODEL, failing(), RNG)


@pytest.mark.parametrize("count", ["all", 0, -1, float("nan")])
def test_a_cohort_is_a_number(count):
    with pytest.raises(MethodError, match="a number of clients, at least 1, or None"):
        cohort_of(method(cohort=lambda self, round: count), 1)


def test_settings_that_a_method_refuses_in_its_own_way():
    @dataclass(frozen=True, kw_only=True)
    class Picky(Gradual):
        def __post_init__(self):
            self.square = self.sparsity**2

    with pytest.raises(MethodError, match=r"Picky.__init__ sets an attribute .*'square'"):
        RunConfig(method=object.__new__(Picky), rounds=1)


def test_a_schedule_that_is_none():
    kind = type(method(schedule=property(lambda self: None)))
    with pytest.raises(MethodError, match=r"mine:Mine\.schedule raised TypeError"):
        RunConfig(method=kind(), rounds=1)
    kind = type(method(schedule=property(lambda self: lambda round: 95)))
    with pytest.raises(MethodError, match=r"a sparsity in \[0, 1\] for a round. Received: 95"):
        RunConfig(method=kind(), rounds=1)


def test_a_method_without_the_decorator(elsewhere):
    (elsewhere / "undecorated.py").write_text(
        "from fedsparsify.methods import Gradual\nfrom fedsparsify.options import option\n\n\n"
        "class Noisy(Gradual):\n    noise: float = option(0.1, 'noise')\n"
    )
    with pytest.raises(ConfigError, match=r"'undecorated:Noisy' has 1 options and is no dataclass. Put @dataclass"):
        method_class("undecorated:Noisy")
