"""Recipes: what each resolves to, what wins over it, and that a resolved run stays what it is."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from click.testing import CliRunner
from torch import nn

from fedsparsify import RunConfig, load_dataset, recipes, run
from fedsparsify.cli import cli
from fedsparsify.cli.run import METHOD_SETTINGS, _collect, command
from fedsparsify.config import load_config, make_config, to_toml
from fedsparsify.data import DATASETS
from fedsparsify.errors import ConfigError, RunError
from fedsparsify.federation.folder import RunFolder
from fedsparsify.federation.sweep import expand
from fedsparsify.methods import FedSparsifyGlobal, Gradual
from fedsparsify.networks import NETWORKS, build, has_batch_norm
from fedsparsify.options import settings
from fedsparsify.recipes import BATCH_NORM, RECIPES, RecipeName

WITHOUT = {
    "lr_schedule": "cosine",
    "lr_final": 0.02,
    "method.score": "lamp",
    "method.end": 0.6,
    "method.server_optimizer": "momentum",
    "method.server_lr": 0.9,
    "method.server_momentum": 0.7,
}
WITH = {
    "lr_schedule": "cosine",
    "lr_final": 0.02,
    "method.end": 0.75,
    "method.exponent": 5.0,
    "method.exclude": ("norms",),
    "method.statistics": "pooled",
}
SMALL = {"weight_decay": 0.0, "label_smoothing": 0.0}
LARGE = {"weight_decay": 0.003, "label_smoothing": 0.1}
PAPERS = {"method.score": "magnitude", "method.server_optimizer": "sgd", "method.server_lr": None}


def value(config: RunConfig, name: str) -> object:
    return getattr(config.method if name.startswith("method.") else config, name.removeprefix("method."))


def values(config: RunConfig, names) -> dict[str, object]:
    return {name: value(config, name) for name in names}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("digits", WITHOUT | {"rounds": 30, "batch_size": 128, "lr": 0.8, "augment": "none"}),
        ("fashion-mnist", WITHOUT | {"rounds": 200, "batch_size": 128, "lr": 0.16, "augment": "none"}),
        ("cifar10", WITH | PAPERS | SMALL | {"rounds": 100, "batch_size": 32, "lr": 0.02, "augment": "pad-crop-flip"}),
        ("cifar100", WITH | PAPERS | LARGE | {"rounds": 100, "lr": 0.02, "augment": "pad-crop-flip"}),
    ],
)
def test_plus_on_our_data_sets(data, expected):
    assert values(RunConfig(data=data, recipe="plus"), expected) == expected


def test_the_paper_is_the_default_and_sets_nothing():
    assert RunConfig().recipe == "paper"
    assert RunConfig(data="cifar10", recipe="paper") == RunConfig(data="cifar10")
    assert values(RunConfig(), [*WITHOUT][:4]) == {
        "lr_schedule": "constant",
        "lr_final": 1.0,
        "method.score": "magnitude",
        "method.end": 1.0,
    }


def test_the_network_decides_not_the_data_set():
    assert values(RunConfig(data="cifar10", network="fc", recipe="plus"), WITHOUT) == WITHOUT
    gray = RunConfig(data="fashion-mnist", network="cnn", recipe="plus")
    assert values(gray, WITH | PAPERS) == WITH | PAPERS
    assert (gray.rounds, gray.augment) == (100, "none")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"lr": 0.5}, {"lr": 0.5, "batch_size": 128, "lr_schedule": "cosine"}),
        ({"batch_size": 16}, {"lr": 0.8, "batch_size": 16}),
        ({"rounds": 7}, {"rounds": 7, "lr": 0.8}),
        ({"lr_final": 0.1}, {"lr_schedule": "cosine", "lr_final": 0.1}),
        ({"lr_schedule": "cosine"}, {"lr_schedule": "cosine", "lr_final": 0.02}),
        ({"lr_schedule": "constant"}, {"lr_schedule": "constant", "lr_final": 1.0, "lr": 0.8}),
        ({"lr_schedule": "step"}, {"lr_final": 0.01, "lr_drops": 2}),
        ({"method.score": "magnitude"}, {"method.score": "magnitude", "method.end": 0.6}),
        ({"method.end": 1.0}, {"method.end": 1.0, "method.score": "lamp"}),
        ({"method.server_lr": 0.5}, {"method.server_optimizer": "momentum", "method.server_lr": 0.5}),
        ({"method.server_optimizer": "sgd"}, {"method.server_optimizer": "sgd", "method.server_lr": None}),
        ({"method.server_optimizer": "adam"}, {"method.server_optimizer": "adam", "method.server_lr": None}),
        ({"method.correction": "feddyn"}, {"method.server_optimizer": "sgd", "method.server_lr": None}),
        ({"optimizer": "adam"}, {"lr": 0.001, "batch_size": 32, "lr_schedule": "cosine"}),
    ],
)
def test_what_is_named_wins_from_everywhere(named, expected, tmp_path):
    run = {name: given for name, given in named.items() if not name.startswith("method.")}
    method = {name.removeprefix("method."): given for name, given in named.items() if name.startswith("method.")}
    python = RunConfig(recipe="plus", method={"name": "fedsparsify-global", **method}, **run)
    assert values(python, expected) == expected
    config = tmp_path / "run.toml"
    lines = [f"{name} = {given!r}" for name, given in run.items()] + ["[method]", 'name = "fedsparsify-global"']
    lines += [f"{name} = {given!r}" for name, given in method.items()]
    config.write_text("\n".join(['recipe = "plus"', *lines]))
    assert load_config(config) == python


def test_large_networks_have_a_column_of_their_own(tmp_path):
    def plus(network, **more):
        config = RunConfig(network=network, recipe="plus", **{"data": "cifar100"} | more)
        return config.lr, config.weight_decay, config.label_smoothing

    assert plus("resnet18") == plus("vgg16") == (0.02, 0.003, 0.1)
    assert plus("resnet18", data="cifar10") == (0.02, 0.003, 0.1)
    assert plus("cnn") == plus("vgg16", weight_decay=0.0, label_smoothing=0.0, lr=0.008) == (0.008, 0.0, 0.0)
    assert plus("resnet18-gn")[1:] == plus("fc")[1:] == (0.0, 0.0)
    assert plus("vgg16", optimizer="adam") == (0.001, 0.0, 0.1)  # rates and decay are of SGD
    assert plus("vgg16", loss="mse", data=npz(tmp_path / "values.npz", (3, 32, 32), np.zeros((6, 2))))[1:] == (0.003, 0)
    server = {"data": "clients", "classes": 10}
    assert plus("cnn", shape=[3, 96, 96], **server)[1:] == (0.0, 0.0)  # 9,998,538 parameters
    assert plus("cnn", shape=[3, 96, 96], **server | {"classes": 20})[1:] == (0.003, 0.1)  # 10,003,668
    assert plus("cnn", shape=[3, 104, 104], **server)[1:] == (0.003, 0.1)
    assert plus(f"{__name__}:own_norm", shape=[3, 64, 64], **server)[1:] == (0.0, 0.0)
    assert plus(f"{__name__}:wide_norm", shape=[3, 64, 64], **server)[1:] == (0.003, 0.1)


def test_augmentation_can_be_turned_off():
    assert RunConfig(data="cifar10", recipe="plus", augment="none").augment == "none"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("fedavg", {"method.server_optimizer": "momentum", "method.server_lr": 0.9, "lr_schedule": "cosine"}),
        ("fedavgm", {"method.server_optimizer": "momentum", "method.server_lr": 0.9}),
        ("fedadam", {"method.server_optimizer": "adam", "method.server_lr": None}),
        ("feddyn", {"method.correction": "feddyn", "method.server_optimizer": "sgd", "lr_final": 0.02}),
        ("fedsparsify-local", {"method.score": "lamp", "method.end": 0.6}),
        ("random", {"method.score": "random", "method.end": 0.6, "method.server_lr": 0.9}),
        ("oneshot", {"method.score": "lamp", "method.server_lr": 0.9}),
        ("snip", {"method.server_lr": 0.9, "lr": 0.8}),
        ("prunefl", {"lr": 0.8, "lr_schedule": "cosine"}),
        ("feddst", {"method.end": 0, "lr_schedule": "cosine"}),
    ],
)
def test_a_method_gets_what_it_has(method, expected):
    config = RunConfig(method=method, recipe="plus")
    assert values(config, expected) == expected
    assert make_config(config.table()) == config


@dataclass(frozen=True, kw_only=True)
class OwnMerge(Gradual):
    """A merge and scores of its own: neither takes the recipe's values."""

    def scores(self, model, rng):
        return np.abs(model.trainable_weights)

    def merge(self, round, model, updates, rng):
        return self.purged(round, model, rng)


def test_a_users_method_keeps_what_it_does_itself():
    config = RunConfig(method=OwnMerge(sparsity=0.5), recipe="plus")
    expected = {"method.score": "magnitude", "method.server_optimizer": "sgd", "method.end": 0.6}
    assert values(config, expected) == expected


def test_a_method_object_counts_its_defaults_as_not_named():
    config = RunConfig(method=FedSparsifyGlobal(sparsity=0.5, score="erk"), recipe="plus")
    assert values(config, WITHOUT) == WITHOUT | {"method.score": "erk"}
    assert config.method.sparsity == 0.5


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"method": {"name": "fedsparsify-global", "score": "magnitude", "server_optimizer": "sgd"}},
        {"method": "fedavg", "lr_schedule": "constant"},
        {"data": "cifar10", "augment": "none", "rounds": 150},
    ],
)
def test_a_resolved_run_is_not_resolved_again(named, tmp_path):
    config = RunConfig(recipe="plus", **named)
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert 'recipe = "plus"\n' in to_toml(config)
    assert load_config(tmp_path / "config.toml") == config
    assert replace(config, seed=3).method == config.method
    assert replace(config, seed=3).differences(config) == ["seed 1990 is now 3"]


def test_a_recipe_of_which_nothing_is_left_is_refused():
    resolved = RunConfig(data="fashion-mnist").table()
    with pytest.raises(ConfigError, match=r"recipe 'plus' would change nothing: .*lr_schedule, method.end"):
        make_config(resolved | {"recipe": "plus"})
    with pytest.raises(ConfigError, match=r"recipe must be one of paper, plus\. Received: 'pluss'"):
        RunConfig(recipe="pluss")


def test_a_sweep_varies_the_recipe():
    runs = expand({"sweep": {"recipe": ["paper", "plus"], "method": ["fedavg", "fedsparsify-global"]}})
    assert [(one.config.recipe, one.config.lr) for one in runs] == [("paper", 0.1)] * 2 + [("plus", 0.8)] * 2


def own_fc(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def own_norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d(), nn.LazyLinear(classes))


def wide_norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d(), nn.LazyLinear(1000), nn.Linear(1000, classes))


def no_network(shape, classes):
    raise ValueError("no weights here")


def npz(path, shape, y=None):
    x = np.zeros((6, *shape), np.float32)
    y = np.array([0, 1, 2, 0, 1, 2]) if y is None else y
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return str(path)


def test_networks_and_data_of_a_users_own_are_looked_at(tmp_path):
    colour, table = npz(tmp_path / "colour.npz", (3, 32, 32)), npz(tmp_path / "table.npz", (5,))
    small, gray = npz(tmp_path / "small.npz", (3, 32, 31)), npz(tmp_path / "gray.npz", (1, 32, 32))
    here = __name__

    def plus(data, network, **more):
        config = RunConfig(data=data, network=network, recipe="plus", **more)
        return config.method.score, config.method.server_optimizer, config.augment, config.lr

    assert plus(table, f"{here}:own_fc") == ("lamp", "momentum", "none", 0.16)
    assert plus(colour, f"{here}:own_fc") == ("lamp", "momentum", "none", 0.16)
    assert plus(table, f"{here}:own_norm") == ("magnitude", "sgd", "none", 0.08)
    assert plus(colour, f"{here}:own_norm") == ("magnitude", "sgd", "pad-crop-flip", 0.08)
    assert plus(colour, "vgg16") == ("magnitude", "sgd", "pad-crop-flip", 0.08)
    assert plus(small, "cnn")[2] == plus(gray, "cnn")[2] == "none"
    assert plus(colour, "vgg16", augment="none")[2] == "none"
    positions = npz(tmp_path / "positions.npz", (3, 32, 32), np.arange(6) / 6)
    assert plus(positions, f"{here}:own_norm", loss="mse")[2] == "none"  # a flip would move what is to be predicted
    npz(tmp_path / "colour.npz", (3, 8, 8))  # the same name, another file
    assert plus(colour, f"{here}:own_norm")[2] == "none"


def test_objects_and_servers_without_samples():
    x, y = np.zeros((6, 3, 32, 32), np.float32), np.array([0, 1, 2, 0, 1, 2])
    norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3072), nn.Linear(3072, 3))
    config = RunConfig(data=(x, y, x, y), network=norm, recipe="plus")
    assert (config.augment, config.method.score) == ("pad-crop-flip", "magnitude")
    assert replace(config, seed=3).method == config.method
    plain = RunConfig(data=(x, y, x, y), network=lambda shape, classes: own_fc(shape, classes), recipe="plus")
    assert (plain.augment, plain.method.score) == ("none", "lamp")
    server = {"data": "clients", "shape": [3, 32, 32], "classes": 10, "recipe": "plus"}
    assert make_config(server | {"network": "cnn"}).augment == "pad-crop-flip"
    assert make_config(server | {"network": f"{__name__}:own_norm"}).augment == "pad-crop-flip"
    assert make_config(server | {"network": f"{__name__}:own_fc"}).method.score == "lamp"


def test_what_cannot_be_looked_at_is_named(tmp_path):
    expected = r"batch norm .*no weights here.*name the settings yourself: augment, batch_size, label_smoothing, lr, "
    with pytest.raises(ConfigError, match=expected):
        RunConfig(network=f"{__name__}:no_network", recipe="plus")
    absent = tmp_path / "absent.npz"
    with pytest.raises(ConfigError, match=r"there is no file .*absent\.npz\. Or name the settings"):
        RunConfig(data=str(absent), network="cnn", recipe="plus")
    assert RunConfig(data=str(absent), recipe="plus").method.score == "lamp"  # fc has no batch norm, whatever the data


def test_a_plus_config_needs_no_torch(tmp_path):
    config = RunConfig(network=f"{__name__}:own_norm", recipe="plus")
    (tmp_path / "config.toml").write_text(to_toml(config))
    code = (
        "import sys, pathlib; sys.modules['torch'] = None; from fedsparsify.config import RunConfig, load_config\n"
        "RunConfig(data='cifar10', recipe='plus'); load_config(pathlib.Path('config.toml'))\n"
        "try: RunConfig(network='json:loads', recipe='plus')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.startswith("ConfigError recipe 'plus' depends on whether network 'json:loads' has batch norm")
    assert "pip install 'fedsparsify[train]'" in ran.stdout


def test_the_tables_know_our_networks_data_sets_and_settings():
    assert {*get_args(RecipeName)} == {*RECIPES}
    shapes = dict.fromkeys(NETWORKS, (3, 8, 8)) | {"vgg16": (3, 32, 32)}
    assert {name: has_batch_norm(build(name, shapes[name], 10, 0)) for name in NETWORKS} == BATCH_NORM
    for name, most in recipes.SMALL_UP_TO.items():
        size = sum(one.numel() for one in build(name, (3, most or 32, most or 32), 1000 if most else 2, 0).parameters())
        assert (size > recipes.MANY) == (most is None)
    assert {*recipes.SMALL_UP_TO} == {name for name, having in BATCH_NORM.items() if having}
    assert DATASETS["digits"].shape == load_dataset("digits").shape
    for recipe in RECIPES.values():
        for name in {**recipe.without_batch_norm, **recipe.with_batch_norm, **recipe.images, **recipe.large}:
            if name.startswith("method."):
                assert name.removeprefix("method.") in settings(FedSparsifyGlobal)
            else:
                assert settings(RunConfig)[name].default is None, f"{name} needs UNSET: else naming it is not seen"


def test_the_command_line_resolves_resumes_and_teaches_it(tmp_path):
    def collect(*words, resume=False):
        given = command.make_context("run", [*words]).params
        kept = {*settings(RunConfig), *METHOD_SETTINGS, "method", "extra"}
        return _collect(None, tmp_path, resume, {name: value for name, value in given.items() if name in kept})

    flags = ("--recipe", "plus", "--score", "magnitude", "--rounds", "2")
    made, _ = collect(*flags)
    assert made == RunConfig(recipe="plus", rounds=2, method={"name": "fedsparsify-global", "score": "magnitude"})
    (tmp_path / "config.toml").write_text(to_toml(made))
    assert collect(resume=True)[0] == made
    with pytest.raises(RunError, match="holds a run of another configuration: recipe 'plus' is now 'paper'"):
        RunFolder(tmp_path).check(collect("--recipe", "paper", resume=True)[0])
    shown = CliRunner().invoke(cli, ["methods"], env={"COLUMNS": "160"}).output
    assert "server_optimizer momentum" in shown
    assert "--recipe [paper|plus]" in CliRunner().invoke(cli, ["run", "--help"]).output


def test_the_page_says_what_the_table_says():
    page = (Path(__file__).parents[1] / "docs" / "plus.md").read_text()
    plus = RECIPES["plus"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    shown = {name.strip("`"): cells for name, *cells in rows}
    having = {**plus.with_batch_norm, **{name: f"{given} for colour" for name, given in plus.images.items()}}
    assert shown.keys() == {*plus.without_batch_norm, *having, *plus.large}
    for name, cells in shown.items():
        for values, cell in zip((plus.without_batch_norm, having, plus.large), cells, strict=True):
            usual = "the method's" if name.startswith("method.") else "the data set's"
            usual = {"weight_decay": "0", "label_smoothing": "0"}.get(name, usual)
            given = values.get(name, "" if values is plus.large else usual)
            assert cell.startswith(", ".join(given) if isinstance(given, tuple) else str(given)), (name, cell)
    rule = " ".join(page.partition("## The rule")[2].partition("<!--")[0].split())
    assert rule.count(". ") == 1, "two sentences"
    assert rule in " ".join((recipes.__doc__ or "").split())
    assert rule in " ".join((RunConfig.__doc__ or "").split())
    (words,) = re.findall(r"^fedsparsify run (.*)$", page, re.MULTILINE)
    assert command.make_context("run", words.split()).params["recipe"] == "plus"


def test_a_run_of_the_recipe(tmp_path):
    config = RunConfig(recipe="plus", rounds=5, epochs=1, clients=2, sparsity=0.9)
    result = run(config, tmp_path)
    assert [round(entry.sparsity, 2) for entry in result.history] == [0.0, 0.79, 0.9, 0.9, 0.9]
    assert load_config(tmp_path / "config.toml") == config
