"""Scores by name, spared tensors, and that both reach every method that purges."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import kernel_model, small_model

from fedsparsify import METHODS, RunConfig, SparseModel, Update, run
from fedsparsify.errors import ConfigError, FedSparsifyError, MethodError
from fedsparsify.federation.sweep import expand, sweep
from fedsparsify.methods import FedSparsifyGlobal, FedSparsifyLocal, Gradual, OneShot, Snip, check_fits
from fedsparsify.options import settings
from fedsparsify.purging import check_reachable, draws, excluded, least_count, least_kept, scored

RNG = np.random.default_rng(0)
NETWORK = SparseModel.of(
    {
        "embed.weight": np.ones((6, 4)),
        "conv.weight": np.ones((2, 4, 1, 1)),
        "norm.weight": np.ones(2),
        "norm.bias": np.ones(2),
        "head.out.weight": np.ones((3, 2)),
        "head.out.bias": np.ones(3),
    }
)  # 45 entries


@pytest.fixture
def scores(monkeypatch):
    """A module of a user's, `mine`."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("embed.weight", ["embed.weight"]),
        ("*embed*", ["embed.weight"]),
        ("norm", ["norm.weight", "norm.bias"]),
        ("head", ["head.out.weight", "head.out.bias"]),
        ("last", ["head.out.weight", "head.out.bias"]),
        ("norms", ["norm.weight", "norm.bias"]),
        ("biases", ["norm.bias", "head.out.bias"]),
        ("*.b?as", ["norm.bias", "head.out.bias"]),
    ],
)
def test_patterns_and_words(pattern, names):
    assert excluded(NETWORK.layout, [pattern]) == names


def test_patterns_add_up_in_the_order_of_the_network():
    assert excluded(NETWORK.layout, ["last", "embed", "norms"]) == [
        *("embed.weight", "norm.weight", "norm.bias", "head.out.weight", "head.out.bias")
    ]


def test_a_network_of_one_module_has_a_last_layer_and_biases():
    layout = SparseModel.of({"weight": np.ones((2, 2)), "bias": np.ones(2)}).layout
    assert excluded(layout, ["last"]) == ["weight", "bias"]
    assert excluded(layout, ["biases"]) == ["bias"]
    assert excluded(layout, ["norms"]) == []


@pytest.mark.parametrize("pattern", ["fc9", "Embed.weight", "", "emb"])
def test_a_pattern_without_a_tensor_is_refused(pattern):
    with pytest.raises(ConfigError, match=rf"names no tensor.*: '{pattern}'.*embed\.weight.*last, norms, biases"):
        excluded(NETWORK.layout, ["last", pattern])


def test_least_counts():
    assert [least_count(100, density) for density in (0.0, 1e-9, 0.07, 0.5, 0.999)] == [0, 1, 7, 50, 100]
    assert least_count(0, 0.5) == 0
    assert least_kept(NETWORK.layout, ("norms",), 0.1) == (
        *((slice(0, 24), 3), (slice(24, 32), 1), (slice(32, 34), 2), (slice(34, 36), 2), (slice(36, 42), 1)),
        (slice(42, 45), 1),
    )
    assert least_kept(NETWORK.layout, (), 0.0) == ()


def test_what_cannot_be_reached_is_refused_with_what_can():
    check_reachable(NETWORK.layout, 0.46, ("embed",), 0.0)  # int(0.46 · 45) = 20 of the 21 others
    with pytest.raises(ConfigError, match=r"prunes 22 of 45.*\['embed'\] keep at least 24.*At most 0\.4666.*0\.5\."):
        check_reachable(NETWORK.layout, 0.5, ("embed",), 0.0)
    with pytest.raises(ConfigError, match=r"exclude \['norm'\] and min_density 0\.5 keep at least 25"):
        check_reachable(NETWORK.layout, 0.9, ("norm",), 0.5)


def test_a_users_function_with_and_without_randomness(scores):
    scores.largest = lambda model: model.trainable_weights
    scores.drawn = lambda model, rng: rng.random(model.layout.trainable)
    scores.powered = lambda model, power=3: model.trainable_weights**power
    scores.sometimes = lambda model, rng=None: np.full(model.layout.trainable, rng is not None)
    scores.listed = lambda model: [1, 2]
    model = small_model([3, -4])
    assert scored("mine:largest", model, RNG).tolist() == [3, -4]
    assert len(set(scored("mine:drawn", model, RNG).tolist())) == 2
    assert scored("mine:powered", model, RNG).tolist() == [27, -64]
    assert scored("mine:sometimes", model, RNG).tolist() == [1, 1]
    assert scored("mine:listed", model, RNG).tolist() == [1, 2]
    named = ("largest", "drawn", "powered", "sometimes")
    assert [draws(f"mine:{name}") for name in named] == [False, True, False, True]


def test_a_users_function_sees_numpy_and_may_answer_in_torch(scores):
    torch = pytest.importorskip("torch")
    scores.seen = lambda model: torch.from_numpy(np.abs(model.weights)).requires_grad_()
    model = small_model([3, -4]).beside(torch.zeros(1))
    found = scored("mine:seen", model, RNG)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda model: np.ones(3), r"2 in a flat array. Received: shape \(3,\)"),
        (lambda model: np.ones((2, 1)), r"Received: shape \(2, 1\)"),
        (lambda model: np.array([1.0, np.nan]), "Received: 1 NaN"),
        (lambda model: np.array(["a", "b"]), "Received: shape .* of <U1"),
        (lambda model: [[1], [2, 3]], "Received: list, ValueError"),
        (lambda model: None, r"Received: shape \(\) of object"),
        (lambda model: 1 / 0, "raised ZeroDivisionError"),
        (lambda: 0, r"must take a model.*Received: mine:wrong\(\)"),
        (lambda model, rng, more: 0, "must take a model"),
        (lambda model, *, scale: 0, "must take a model"),
        (5, "must name a function. Received: 5"),
        (dict, "must name a function"),
    ],
)
def test_a_users_mistakes_are_named_before_the_first_round(scores, function, says):
    scores.wrong = function
    with pytest.raises((ConfigError, MethodError), match=f"score 'mine:wrong' .*{says}"):
        check_fits(FedSparsifyGlobal(score="mine:wrong"), small_model([1, 2]))


def test_a_score_that_is_not_there():
    with pytest.raises(ConfigError, match=r"there is no score 'lamb'\. Did you mean 'lamp'\?"):
        RunConfig(method={"name": "fedsparsify-global", "score": "lamb"})


def merged(method, round, *models):
    return method.merge(round, models[0], iter([Update(model, 1) for model in models]), RNG)


def test_the_server_spares_what_is_excluded_and_meets_the_count():
    model = kernel_model([[9, 8], [7, 6]], [1, 2], [[3, 4]])
    kept = merged(FedSparsifyGlobal(sparsity=0.5, rounds=1, exclude=("t1",)), 1, model)
    assert kept.weights.tolist() == [9, 8, 0, 0, 1, 2, 0, 0]
    kept = merged(OneShot(sparsity=0.5, rounds=1, min_density=0.5), 1, model)
    assert kept.weights.tolist() == [9, 8, 0, 0, 0, 2, 0, 4]
    kept = merged(OneShot(sparsity=0.5, rounds=1, score="lamp"), 1, model)
    assert kept.weights.tolist() == [9, 8, 0, 0, 0, 2, 0, 4]  # LAMP: 1, .44, .25, .16 | .2, 1 | .36, 1


def test_the_majority_of_local_purges_keeps_the_least_number():
    """Three clients of which no two keep the same entry of the second tensor: the majority keeps none of it."""
    before = kernel_model([[9, 8]], [3, 3, 3])
    method = FedSparsifyLocal(sparsity=0.4, rounds=1, min_density=0.3)
    updates = []
    for other in range(3):
        client = method.client(1, before)
        request = next(client)
        trained = kernel_model([[9, 8]], np.where(np.arange(3) == other, 5 + other, 1))
        with pytest.raises(StopIteration) as done:
            client.send(Update(trained, 1))
        assert request.model is before
        assert done.value.value.model.mask.tolist() == [True, True, *(np.arange(3) == other)]
        updates.append(done.value.value)
    after = method.merge(1, before, iter(updates), RNG)
    assert after.weights.tolist() == pytest.approx([9, 8, 0, 0, 7 / 3])
    bare = FedSparsifyLocal(sparsity=0.4, rounds=1).merge(1, before, iter(updates), RNG)
    assert bare.weights.tolist() == [9, 8, 0, 0, 0]


PURGES = [name for name, kind in METHODS.items() if {"exclude", "min_density"} <= settings(kind).keys()]


def test_who_takes_which_option():
    known = {name: settings(kind) for name, kind in METHODS.items()}
    having = {option: {name for name in known if option in known[name]} for option in ("score", "end")}
    purging = {"fedsparsify-global", "fedsparsify-local", "random", "oneshot", "oneshot-ft"}
    assert {*PURGES} == purging | {"snip", "grasp", "ssfl"}
    assert having["score"] == purging
    assert having["end"] == {"fedsparsify-global", "fedsparsify-local", "random", "feddst", "fedrts"}
    for name in METHODS.keys() - {*PURGES}:
        with pytest.raises(ConfigError, match=r"has no setting 'method\.exclude'"):
            RunConfig(method={"name": name, "exclude": ["last"]})
    with pytest.raises(ConfigError, match=r"must be one of random\. Received: 'lamp'"):
        RunConfig(method={"name": "random", "score": "lamp"})
    with pytest.raises(ConfigError, match="must not be random for fedsparsify-local"):
        RunConfig(method={"name": "fedsparsify-local", "score": "random"})


@pytest.mark.parametrize("name", PURGES)
def test_every_method_that_purges_spares_tensors_in_a_run(name):
    options = {"name": name, "sparsity": 0.8, "exclude": ["last"], "min_density": 0.03}
    options |= {"tune": 1} if name == "oneshot-ft" else {}
    result = run(RunConfig(method=options, rounds=2, epochs=1, clients=2))
    layout, mask = result.model.layout, result.model.mask
    density = {spec.name: mask[layout.slices[spec.name]].mean() for spec in layout.tensors}
    assert density["5.weight"] == density["5.bias"] == 1
    assert all(share >= 0.03 for share in density.values())
    assert density["3.weight"] < 1
    if METHODS[name].exact:
        assert result.model.pruned == int(0.8 * layout.trainable)


def test_refused_before_a_run_has_a_folder(tmp_path):
    config = RunConfig(method={"name": "snip", "sparsity": 0.95, "exclude": ["1.weight"]}, rounds=1)
    with pytest.raises(ConfigError, match=r"At most 0\.6863"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sweep_is_checked_before_its_first_run(tmp_path):
    table = {"rounds": 1, "epochs": 1, "clients": 2, "sweep": {"exclude": [[], ["1.weight"]], "sparsity": [0.9]}}
    planned = expand(table)
    assert len(planned) == 2
    with pytest.raises(ConfigError, match=r"At most 0\.6863"):
        sweep(planned, tmp_path)
    assert not [*tmp_path.rglob("history.jsonl")]


def test_options_travel_as_json():
    strategy = pytest.importorskip("fedsparsify.federation.flower.strategy")
    mod = pytest.importorskip("fedsparsify.federation.flower.mod")
    chosen = {"score": "lamp", "end": 2, "exclude": ["last"], "min_density": 0.01}
    made = strategy.SparseStrategy("fedsparsify-local", 0.9, rounds=4, settings=chosen)
    assert mod.method_of(made._table) == made.method
    assert json.loads(made._table)["exclude"] == ["last"]
    assert (made.method.end, made.method.schedule(2)) == (2.0, 0.9)


def test_a_method_of_ones_own_may_score_by_itself():
    @dataclass(frozen=True, kw_only=True)
    class Smallest(Gradual):
        def scores(self, model, rng):
            return -np.abs(model.trainable_weights)

    @dataclass(frozen=True, kw_only=True)
    class Former(Gradual):
        def score(self, model, rng):
            return -np.abs(model.trainable_weights)

    for kind in (Smallest, Former):
        assert merged(kind(sparsity=0.5, rounds=1), 1, small_model([1, 2])).weights.tolist() == [1, 0]
        with pytest.raises(ConfigError, match=f"{kind.__name__} scores by a function of its own.*'lamp'"):
            kind(score="lamp")


@pytest.mark.parametrize("density", [-0.1, 1.0, 50])
def test_a_density_is_a_fraction(density):
    for kind in (FedSparsifyGlobal, Snip):
        with pytest.raises(FedSparsifyError, match=r"method\.min_density must lie in \[0, 1\)"):
            kind(min_density=density)


def test_the_example_of_the_page(here, elsewhere, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "methods.md").read_text()
    code, line = (
        next(block for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if "per_tensor" in block)
        for language in ("python", "bash")
    )
    (elsewhere / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(elsewhere)
    status, _, said = here(*shlex.split(line)[1:])
    assert status == 0, said
    lines = (elsewhere / "runs" / "scored" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["sparsity"] for line in lines][-2:] == pytest.approx([0.9, 0.9], abs=1e-4)
