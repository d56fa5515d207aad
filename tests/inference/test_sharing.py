"""Whether several threads share one sample."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.inference import Engine
from fedsparsify.inference.runtime.sharing import (
    DISAPPOINTMENTS,
    FIRST_INTERVAL,
    TRIAL_INTERVAL,
    TRIALS,
    SharingPolicy,
)
from fedsparsify.networks import build, model_of
from fedsparsify.networks.tracing import trace


def run_policy(policy: SharingPolicy, shared: float, alone: float, runs: int) -> list[bool]:
    """The ways of some runs, where either takes so long."""
    ways = []
    for _ in range(runs):
        ways.append(way := policy.shared)
        policy.record(shared if way else alone)
    return ways


TRIAL = [True, False] * TRIALS


def test_the_faster_way_is_taken_and_tried_more_and_more_rarely() -> None:
    policy = SharingPolicy()
    interval = FIRST_INTERVAL
    for _ in range(7):
        interval = min(2 * interval, TRIAL_INTERVAL)
        assert run_policy(policy, shared=1, alone=2, runs=interval) == TRIAL + [True] * (interval - 2 * TRIALS)
    assert interval == TRIAL_INTERVAL


def test_a_way_that_has_become_slower_is_left_at_once() -> None:
    policy = SharingPolicy()
    run_policy(policy, shared=1, alone=2, runs=20 * TRIAL_INTERVAL)
    for shared, alone, faster in ((3, 2, False), (3, 4, True)):
        ways = run_policy(policy, shared, alone, runs=TRIAL_INTERVAL)
        assert ways[-1] is faster
        assert ways.count(not faster) < 2 * TRIALS + DISAPPOINTMENTS + 2 * TRIALS * (TRIAL_INTERVAL // FIRST_INTERVAL)


def test_one_slow_try_does_not_decide() -> None:
    policy = SharingPolicy()
    policy.record(100)
    run_policy(policy, shared=1, alone=2, runs=2 * TRIALS - 1)
    assert policy.shared


def test_either_way_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsparsify.inference.planner.SHARED_VECTORS", 0)  # as if it were large
    module = build("cnn", (3, 32, 32), 10, seed=1).eval()
    engine = Engine(model_of(module), 2, trace(module))
    batch = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    results = [engine.run(batch) for _ in range(2 * TRIALS + 2)]
    assert all(np.array_equal(results[0], other) for other in results[1:])
    (plan,) = engine._plans.values()
    assert set(plan.policy._best) == {True, False}
