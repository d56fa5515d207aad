"""Whether several threads share one sample."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.inference import Engine
from fedsparsify.inference.runtime.sharing import TRIAL_INTERVAL, TRIALS, SharingPolicy
from fedsparsify.networks import build, model_of
from fedsparsify.networks.tracing import trace


def run_policy(policy: SharingPolicy, shared: float, alone: float, runs: int = TRIAL_INTERVAL) -> list[bool]:
    """The ways of some runs, where either takes so long."""
    ways = []
    for _ in range(runs):
        ways.append(way := policy.shared)
        policy.record(shared if way else alone)
    return ways


def test_the_faster_way_is_taken_until_the_next_trial() -> None:
    policy = SharingPolicy()
    trial = [True] * TRIALS + [False] * TRIALS
    assert run_policy(policy, shared=1, alone=2) == trial + [True] * (TRIAL_INTERVAL - 2 * TRIALS)
    assert run_policy(policy, shared=2, alone=1) == trial + [False] * (TRIAL_INTERVAL - 2 * TRIALS)
    assert run_policy(policy, shared=1, alone=2) == trial + [True] * (TRIAL_INTERVAL - 2 * TRIALS)


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
