"""Which of two ways an engine takes for one image."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.inference import Engine
from fedsparsify.inference.runtime.sharing import EVERY, TRIES, Pace
from fedsparsify.networks import build, model_of
from fedsparsify.networks.tracing import trace


def play(pace: Pace, shared: float, alone: float, runs: int = EVERY) -> list[bool]:
    """Ways taken, where either takes so long."""
    taken = []
    for _ in range(runs):
        taken.append(way := pace.shared)
        pace.took(shared if way else alone)
    return taken


def test_the_faster_way_is_taken_until_the_next_trial() -> None:
    pace = Pace()
    trial = [True] * TRIES + [False] * TRIES
    assert play(pace, shared=1, alone=2) == trial + [True] * (EVERY - 2 * TRIES)
    assert play(pace, shared=2, alone=1) == trial + [False] * (EVERY - 2 * TRIES)
    assert play(pace, shared=1, alone=2) == trial + [True] * (EVERY - 2 * TRIES)


def test_one_slow_try_does_not_decide() -> None:
    pace = Pace()
    pace.took(100)
    play(pace, shared=1, alone=2, runs=2 * TRIES - 1)
    assert pace.shared


def test_either_way_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsparsify.inference.engine.SHARED_VECTORS", 0)  # as if it were large
    module = build("cnn", (3, 32, 32), 10, seed=1).eval()
    engine = Engine(model_of(module), 2, trace(module))
    batch = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    results = [engine.run(batch) for _ in range(2 * TRIES + 2)]
    assert all(np.array_equal(results[0], other) for other in results[1:])
    (plan,) = engine._plans.values()
    assert set(plan.pace._best) == {True, False}
