"""What every method must hold, and the literal rules of each."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import METHODS, RunConfig, run
from fedsparsify.methods import (
    FedAvg,
    FedProx,
    FedSparsifyGlobal,
    FedSparsifyLocal,
    Fit,
    Method,
    OneShot,
    OneShotFT,
    Random,
    Update,
)
from fedsparsify.options import settings

ROUNDS = 4
RNG = np.random.default_rng(0)


def config(name: str, **more) -> RunConfig:
    tuned = {"tune": 2} if "tune" in settings(METHODS[name]) else {}
    return RunConfig(method={"name": name, **tuned}, rounds=ROUNDS, epochs=1, clients=4, **more)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_bytes_and_another_seed_other_bytes(name):
    first, second = run(config(name)), run(config(name))
    assert first.model.same_as(second.model)
    assert not first.model.same_as(run(config(name, seed=7)).model)


@pytest.mark.parametrize("name", METHODS)
def test_target_sparsity_is_met_to_the_parameter_and_masks_only_shrink(name):
    result = run(config(name))
    before = 0.0
    for entry in result.history:
        assert before <= entry.sparsity
        before = entry.sparsity
        if name != "fedsparsify-local":  # its clients agree on some weights and not on others
            pruned = result.model.layout.total - entry.nonzero
            assert pruned == int(entry.target_sparsity * result.model.layout.trainable)
    assert not result.model.trainable_weights[~result.model.mask].any()


def play(method: Method, round: int, model, *trained):
    """Both halves by hand: each client answers `Fit` with the given weights."""
    updates = []
    for number, weights in enumerate(trained):
        client = method.client(round, model)
        request = next(client)
        assert isinstance(request, Fit)
        with pytest.raises(StopIteration) as done:
            client.send(Update(small_model(weights, model.mask), samples=1, client=number))
        updates.append(done.value.value)
    return method.merge(round, model, iter(updates), RNG)


def test_fedavg_is_the_mean():
    assert play(FedAvg(rounds=1), 1, small_model([0, 0]), [1, 2], [3, 4]).weights.tolist() == [2, 3]


def test_fedprox_asks_for_its_pull():
    assert next(FedProx(mu=0.25).client(1, small_model([1]))).prox == 0.25


def test_global_prunes_the_mean():
    merged = play(FedSparsifyGlobal(rounds=1, sparsity=0.5), 1, small_model([0] * 4), [1, -9, 3, 1], [1, 9, 5, 4])
    assert merged.weights.tolist() == [0, 0, 4, 2.5]  # the large opposites cancel, and go
    assert merged.mask.tolist() == [False, False, True, True]


def test_local_prunes_at_the_clients_and_keeps_what_half_of_them_kept():
    method = FedSparsifyLocal(rounds=1, sparsity=0.5)
    merged = play(method, 1, small_model([0] * 4), [1, -9, 3, 0], [1, 9, 0, 4])
    assert merged.weights.tolist() == [0, 0, 1.5, 2]  # kept although it is zero now: both kept it
    assert merged.mask.tolist() == [False, True, True, True]


def test_locals_average_ablation_keeps_what_any_client_kept():
    three = ([9, 8, 0, 0], [9, 0, 7, 0], [9, 8, 0, 0])
    vote = play(FedSparsifyLocal(rounds=1, sparsity=0.5), 1, small_model([0] * 4), *three)
    mean = play(FedSparsifyLocal(rounds=1, sparsity=0.5, aggregate="average"), 1, small_model([0] * 4), *three)
    assert vote.mask.tolist() == [True, True, False, False]
    assert mean.mask.tolist() == [True, True, True, False]


def test_local_never_returns_what_the_global_mask_pruned():
    model = small_model([1, 0, 2, 3], [True, False, True, True])
    merged = play(FedSparsifyLocal(rounds=1, sparsity=0.5), 1, model, [5, 0, 1, 6], [5, 0, 1, 6])
    assert merged.mask.tolist() == [True, False, False, True]


def test_random_prunes_at_random_but_nested():
    model = small_model(np.arange(1, 101))
    method = Random(rounds=2, sparsity=0.5, initial=0.25)
    once = play(method, 1, model, model.weights)
    twice = play(method, 2, once, once.weights)
    assert (once.pruned, twice.pruned) == (25, 50)
    assert not (twice.mask & ~once.mask).any()
    assert once.mask[:25].any()  # not by magnitude


def test_oneshot_prunes_at_the_end_and_with_tuning_before_it():
    assert [OneShot(rounds=20, sparsity=0.9).schedule(t) for t in (1, 19, 20)] == [0, 0, 0.9]
    assert [OneShotFT(rounds=20, sparsity=0.9).schedule(t) for t in (9, 10, 20)] == [0, 0.9, 0.9]


def test_statistics_are_averaged_and_never_pruned():
    model = small_model([0, 0], statistics=[0])
    updates = [Update(small_model([1, 2], statistics=[0.001]), 1), Update(small_model([1, 2], statistics=[0.003]), 3)]
    merged = FedSparsifyGlobal(rounds=1, sparsity=0.5).merge(1, model, updates, RNG)
    assert merged.weights.tolist() == [0, 2, pytest.approx(0.0025)]
    assert merged.nonzero == 2
