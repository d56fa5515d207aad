"""What every method must hold, and the literal rules of each."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import EVERY_METHOD, small_model

from fedsparsify import METHODS, RunConfig, run
from fedsparsify.data import load_dataset
from fedsparsify.federation.rounds import run_rounds as rounds_of
from fedsparsify.federation.simulated import Simulated
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


SHORT = {"tune": 2, "readjust": 2, "end": ROUNDS}  # settings that make something happen within so few rounds


def config(name: str, **more) -> RunConfig:
    short = {option: value for option, value in SHORT.items() if option in settings(METHODS[name])}
    more |= {"lr": 0.5} if name == "topk" else {}  # at less, no other weights are largest after so few steps
    return RunConfig(method={"name": name, **short}, rounds=ROUNDS, epochs=1, clients=4, **more)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_same_seed_same_bytes_and_another_seed_other_bytes(name):
    first, second = run(config(name)), run(config(name))
    assert first.model.same_as(second.model)
    assert not first.model.same_as(run(config(name, seed=7)).model)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_target_sparsity_is_met_to_the_parameter_and_masks_only_shrink(name):
    """An `exact` method meets its target in every round; a mask that does not regrow only shrinks, entry by entry."""
    plan = config(name)
    federation = Simulated(plan, load_dataset(plan.data))
    start, masks = federation.initial(), []
    for model, entry, _ in rounds_of(federation, plan.method, start, plan.method.first_round, ROUNDS, plan.seed):
        masks.append(model.mask)
        if plan.method.exact:
            assert model.pruned == int(entry.target_sparsity * model.layout.trainable)
        assert not model.trainable_weights[~model.mask].any()
    returned = [int((after & ~before).sum()) for before, after in pairwise(masks)]
    assert any(returned) if plan.method.regrows else not any(returned)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_models_that_live_in_torch_give_the_same_bytes(name):
    """What a GPU does: models stay tensors from round to round. Here on a CPU, where nothing else may differ."""
    plan, ends = config(name), []
    for place in (lambda model: model, lambda model: model.beside(torch.zeros(1))):
        federation = Simulated(plan, load_dataset(plan.data))
        start, first = place(federation.initial()), plan.method.first_round
        ends += [model for model, _, _ in rounds_of(federation, plan.method, start, first, ROUNDS, plan.seed)][-1:]
    assert isinstance(ends[1].weights, torch.Tensor)
    assert ends[0].same_as(ends[1])


def test_who_is_exact_and_who_regrows():
    assert {name for name, kind in METHODS.items() if not kind.exact} == {
        "fedsparsify-local",
        "prunefl",
        "topk",
        "sparsyfed",
    }
    assert {name for name, kind in METHODS.items() if kind.regrows} == {"prunefl", "feddst", "topk", "fedrts"}


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_stopped_early_or_late_and_resumed_is_the_same_run(name, tmp_path):
    whole = run(config(name), tmp_path / "whole")
    rounds = [entry.round for entry in whole.history]
    assert rounds == list(range(METHODS[name].first_round, ROUNDS + 1))
    for stop in (rounds[0], rounds[-2]):
        cut = tmp_path / f"cut-{stop}"

        def interrupt(entry, stop=stop):
            if entry.round == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(config(name), cut, on_round=interrupt)
        resumed = run(config(name), cut, resume=True)
        assert (cut / "model.fsz").read_bytes() == (tmp_path / "whole" / "model.fsz").read_bytes()
        assert [entry.round for entry in resumed.history] == rounds


@pytest.mark.parametrize(
    "method",
    [
        {"name": "snip"},
        {"name": "grasp", "probe": "all"},
        {"name": "prunefl", "reconfigurations": 1, "readjust": 1},
        {"name": "feddst", "readjust": 1, "end": 3},
        {"name": "ssfl"},
        {"name": "topk", "sparsity": 0.5},
        {"name": "sparsyfed", "sparsity": 0.5},
        {"name": "fedrts", "readjust": 1, "end": 3},
    ],
    ids=lambda method: method["name"],
)
def test_methods_that_prune_weight_tensors_leave_the_others(method):
    """Through convolutions, batch norm and dropout; the statistics that a run ends with are those of its clients."""
    few = {
        f"{x}_{part}": getattr(load_dataset("digits"), f"{x}_{part}")[:96] for x in "xy" for part in ("train", "test")
    }
    plan = RunConfig(method=method, network="cnn", rounds=2, epochs=1, clients=2, momentum=0.9)
    result = run(plan, dataset=replace(load_dataset("digits"), **few))
    layout, mask = result.model.layout, result.model.mask
    kept = {spec: mask[layout.slices[spec.name]] for spec in layout.tensors}
    assert all(part.all() for spec, part in kept.items() if len(spec.shape) == 1)
    assert any(not part.all() for spec, part in kept.items() if len(spec.shape) > 1)
    assert all(np.isfinite(part).all() and part.any() for part in result.model.tensors().values())


def test_every_method_has_a_row_in_the_table():
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == list(METHODS)


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


def test_which_methods_average():
    averaging = {name for name, kind in METHODS.items() if kind.averages}
    assert averaging == set(METHODS) - {"fedsparsify-local", "prunefl", "feddst", "topk", "sparsyfed", "fedrts"}

    class Own(METHODS["fedsparsify-global"]):
        def merge(self, round, model, updates, rng):
            return super().merge(round, model, updates, rng)

    assert not Own.averages
