"""PruneFL's rule by hand, its two halves, and where its times come from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from conftest import kernel_model

from fedsparsify import RunConfig, run
from fedsparsify.config import load_config
from fedsparsify.errors import ConfigError, RunError
from fedsparsify.methods import Fit, PruneFL, Score, Update
from fedsparsify.methods.prunefl import time_of_each, worth_its_time

RNG = np.random.default_rng(0)
MODEL = kernel_model([[5, 4, 3, 2, 0, 0]], [1], masks=([[1, 1, 1, 1, 0, 0]], [1]))  # a weight tensor and a bias
SQUARES = np.array([1, 3, 9, 0.5, 8, 2.5, 2], np.float32)


def test_entries_compete_by_gain_over_time():
    # Half of four kept weights may go: 3 and 2. What stays: Σg² = 1 + 3 + 2 = 6 in time 3, ratio 2.
    # 9 > 2: stays, 15/4. 8 > 3.75: returns, 23/5. 2.5 < 4.6: stop.
    mask = worth_its_time(MODEL, SQUARES, "0,1", share=0.5)
    assert mask.tolist() == [True, True, True, False, True, False, True]
    # A constant of 6: 6/9, 15/10, 23/11; 2.5 > 2.09 returns, 25.5/12; 0.5 goes.
    mask = worth_its_time(MODEL, SQUARES, "6,1", share=0.5)
    assert mask.tolist() == [True, True, True, False, True, True, True]


def test_time_decides_between_layers():
    model = kernel_model([[4, 1]], [[4, 1]])  # 1 may go in either
    squares = np.array([1, 3, 10, 9], np.float32)
    # The same time: 11/2; 9 > 5.5 stays, 20/3; 3 goes.
    assert worth_its_time(model, squares, "0,1,1", 0.5).tolist() == [True, False, True, True]
    # The second layer ten times slower: 11/11; 3 stays, 14/12; 9/10 goes.
    assert worth_its_time(model, squares, "0,1,10", 0.5).tolist() == [True, True, True, False]


def test_nothing_may_go_and_everything_may_return():
    assert worth_its_time(MODEL, np.zeros(7, np.float32), "0,1", 0.1).tolist() == MODEL.mask.tolist()
    returning = np.array([0, 0, 0, 0, 1, 1, 0], np.float32)
    assert worth_its_time(MODEL, returning, "0,1", 0.0).all()


def test_what_returns_starts_at_zero_and_weights_that_stay_keep_theirs():
    method = PruneFL(rounds=100, share=0.5, times="0,1", half_life=1e9)
    updates = [Update(MODEL, 1, scores=SQUARES * 2), Update(MODEL, 3, scores=SQUARES * 2 / 3)]  # their mean is SQUARES
    merged = method.merge(50, MODEL, iter(updates), RNG)
    assert merged.mask.tolist() == [True, True, True, False, True, False, True]
    assert merged.weights.tolist() == [5, 4, 3, 0, 0, 0, 1]


def test_the_share_halves():
    half = PruneFL(rounds=100, share=1 - 1e-9, times="0,1", half_life=50).merge(
        50, MODEL, iter([Update(MODEL, 1, scores=np.float32([9, 9, 0, 0, 0, 0, 9]))]), RNG
    )
    assert half.mask.tolist() == [True, True, True, False, False, False, True]  # int(1.999…) = 1 of 4 may go, and does


def test_when_it_readjusts():
    method = PruneFL(rounds=200)
    assert [t for t in range(1, 201) if method.readjusts(t)] == [50, 100, 150]
    assert isinstance(next(method.client(49, MODEL)), Fit)
    question = next(method.client(50, MODEL))
    assert isinstance(question, Score) and question.by == "squares" and question.epochs is None
    assert method.merge(49, MODEL, iter([Update(MODEL, 1)]), RNG).same_as(MODEL)


def test_the_first_client_reconfigures_and_sends_its_model():
    method = PruneFL(reconfigurations=2, share=0.5, times="0,1")
    assert (method.cohort(0), method.cohort(1)) == (1, None)
    client = method.client(0, MODEL)
    first = next(client)
    assert (first.by, first.epochs) == ("squares", 1)
    second = client.send(Update(MODEL, 4, scores=SQUARES))
    assert second.model.mask.tolist() == [True, True, True, False, True, False, True]
    with pytest.raises(StopIteration) as done:
        client.send(Update(second.model, 4, scores=np.float32([0, 0, 0, 0, 0, 0, 1])))
    update = done.value.value
    assert update.scores is None
    assert update.model.mask.tolist() == [True, True, False, False, False, False, True]  # 3 and the zero went
    assert method.merge(0, MODEL, iter([update]), RNG).same_as(update.model)


def test_the_ledger_shows_size_going_up_and_down_and_what_squares_cost():
    for settings, moves in (
        ({"share": 0.8, "half_life": 1e9}, lambda before, after: before > after),
        ({"share": 0.3, "half_life": 1.0}, lambda before, after: before < after),
    ):
        method = {"name": "prunefl", "readjust": 1, **settings}
        history = run(RunConfig(method=method, rounds=6, epochs=1, clients=3)).history
        sizes = [entry.nonzero for entry in history]
        assert any(moves(before, after) for before, after in pairwise(sizes))
    assert (history[0].clients, history[0].upload_params) == (1, sizes[0])
    trainable = history[0].download_params  # fc has no statistics
    squares = history[1].upload_params - 3 * sizes[0]  # of entries whose gradient is not zero: some pixels are empty
    assert 2 * trainable < squares <= 3 * trainable
    assert history[6].upload_params == 3 * sizes[5]  # nothing is readjusted after the last round


def test_times_of_each_entry():
    layout = kernel_model([[1, 2]], [3], [[4], [5]], [6]).layout
    constant, each = time_of_each("0.5,1,10", layout)
    assert (constant, each.tolist()) == (0.5, [1, 1, 1, 10, 10, 10])
    constant, each = time_of_each("uniform", layout)
    assert (constant, each.tolist()) == (pytest.approx(0.14 * 6), [1] * 6)
    with pytest.raises(ConfigError, match=r"network's 2 weight tensors. Received: 3"):
        time_of_each("0,1,2,3", layout)


def test_measured_times_are_stored_with_the_run_and_repeat_it(tmp_path):
    config = RunConfig(method={"name": "prunefl", "times": "measured", "readjust": 2}, rounds=3, epochs=1, clients=3)
    whole = run(config, tmp_path / "whole")
    stored = load_config(tmp_path / "whole" / "config.toml")
    figures = [float(word) for word in stored.method.times.split(",")]
    assert len(figures) == 4
    assert all(value > 0 for value in figures[1:])
    assert run(stored).model.same_as(whole.model)

    def interrupt(entry):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stored, tmp_path / "cut", on_round=interrupt)
    assert run(config, tmp_path / "cut", resume=True).model.same_as(whole.model)  # not measured again
    with pytest.raises(RunError, match=r"method\.readjust 2 is now 50"):
        run(RunConfig(method={"name": "prunefl", "times": "measured"}, rounds=3), tmp_path / "cut", resume=True)


@pytest.mark.parametrize(
    "settings", [{"times": text} for text in ("", "1", "0,0", "0,-1", "0,inf", "-1,1", "a,b")] + [{"share": 1.0}]
)
def test_mistakes(settings):
    with pytest.raises(ConfigError, match="Received"):
        RunConfig(method={"name": "prunefl", **settings})
