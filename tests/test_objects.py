"""Objects in Python where config files have names."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedsparsify import Fit, Method, RunConfig, load_dataset, option, run
from fedsparsify.config import load_config, make_config, to_toml
from fedsparsify.data import Dataset
from fedsparsify.errors import ConfigError, DataError, RunError
from fedsparsify.federation.sweep import expand, sweep
from fedsparsify.networks import fc
from fedsparsify.notices import Notice
from fedsparsify.toml import loads

SMALL = {"rounds": 2, "epochs": 1, "clients": 2, "method": "fedavg"}


def small(shape, classes):
    """A factory that can be imported."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def parts():
    """A function that can be imported and returns data."""
    return load_dataset("digits")


def test_what_can_be_imported_is_its_name():
    config = RunConfig(network=small, data=parts, loss=nn.functional.cross_entropy, **SMALL)
    assert (config.network, config.data) == ("test_objects:small", "test_objects:parts")
    assert config.loss == "torch.nn.functional:cross_entropy"
    assert config == RunConfig(network="test_objects:small", data="test_objects:parts", loss=config.loss, **SMALL)
    assert 'network = "test_objects:small"' in to_toml(config)
    assert RunConfig(data=Path("mine.npz")).data == "mine.npz"


def test_other_objects_are_described_and_equal_by_what_they_are():
    one, two = (lambda shape, classes: small(shape, classes) for _ in range(2))
    config = RunConfig(network=one, **SMALL)
    assert config.network == "<function test_objects:" + one.__qualname__ + ">"
    assert repr(config).startswith("RunConfig(data='digits', network=<function test_objects:")
    assert config == RunConfig(network=one, **SMALL) == replace(config) == copy.deepcopy(config)
    assert config != RunConfig(network=two, **SMALL) and hash(config) == hash(replace(config))
    assert replace(config, rounds=3).network.value is one
    assert RunConfig(network=partial(fc), **SMALL).network == "<partial fedsparsify.networks:fc>"
    with pytest.raises(ConfigError, match=r"network must be a name, a torch.nn.Module or a function.*Received: int"):
        RunConfig(network=3)


def test_data_are_equal_by_their_content():
    digits = load_dataset("digits")
    config = RunConfig(data=digits, **SMALL)
    assert config.data.startswith("<Dataset digits: 1,442 + 355 samples, ")
    assert config == RunConfig(data=load_dataset("digits"), **SMALL) == pickle.loads(pickle.dumps(config))
    assert config.lr == RunConfig(data="digits").lr  # its preset, too
    assert config.data != RunConfig(data=replace(digits, y_train=digits.y_train[::-1])).data
    assert config.data != RunConfig(data=replace(digits, labels=())).data
    by_hand = {name: getattr(digits, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    for made in (by_hand, tuple(by_hand.values())):
        assert "1,442 + 355 samples" in RunConfig(data=made).data
    torch_set = TensorDataset(torch.from_numpy(digits.x_train), torch.from_numpy(digits.y_train))
    assert "1,442 + 0 samples" in RunConfig(data=torch_set, evaluate="clients").data
    with pytest.raises(DataError, match="Received: int"):
        RunConfig(data=3)


def test_a_run_of_objects_is_the_run_of_their_names(tmp_path):
    named = run(RunConfig(data="digits", network="test_objects:small", **SMALL))
    made = run(RunConfig(data=load_dataset("digits"), network=lambda shape, classes: small(shape, classes), **SMALL))
    assert np.array_equal(named.model.weights, made.model.weights)


def test_a_module_is_copied_with_its_weights():
    module = small((1, 8, 8), 10)
    config = RunConfig(network=module, lr=1e-12, **SMALL)
    before = module[1].weight.detach().clone()
    assert config == RunConfig(network=copy.deepcopy(module), lr=1e-12, **SMALL)
    with torch.no_grad():
        module[1].weight.zero_()
    assert config != RunConfig(network=module, lr=1e-12, **SMALL)
    assert np.allclose(run(config).model.tensors()["1.weight"], before, atol=1e-6)


def stopped_in_round_1(entry):
    if entry.round == 1:
        raise KeyboardInterrupt


def test_resumed_from_python_with_the_same_objects_alone(tmp_path, here):
    digits, small_net = load_dataset("digits"), lambda shape, classes: small(shape, classes)

    @dataclass(frozen=True, kw_only=True)
    class Local(Method):
        """A method that no other process finds."""

        speed: float = option(1.0, "nothing")

        def client(self, round, model):
            return (yield Fit(model))

    settings = {**SMALL, "method": Local(speed=2.0), "data": digits, "network": small_net}
    config, out = RunConfig(**settings), tmp_path / "run"
    whole = run(config)
    with pytest.raises(KeyboardInterrupt):
        run(config, out, on_round=stopped_in_round_1)
    with pytest.raises(RunError, match=r"data '?<Dataset digits.*is now '?<Dataset digits"):
        run(replace(config, data=replace(digits, labels=())), out, resume=True)
    with pytest.raises(RunError, match="is of another network"):
        run(RunConfig(**settings | {"network": lambda shape, classes: fc(shape, classes)}), out, resume=True)
    code, _, said = here("run", "--out", out, "--resume")
    assert code == 2 and "defined in a script, a notebook or a function" in said
    again = run(RunConfig(**settings | {"data": load_dataset("digits")}), out, resume=True)
    assert np.array_equal(again.model.weights, whole.model.weights)
    plain = replace(config, method=Local)
    assert plain.method == Local(rounds=2)


def test_the_command_line_refuses_descriptions(tmp_path, here):
    for place, settings in enumerate(({"data": load_dataset("digits")}, {"network": lambda: small((), 10)})):
        out = tmp_path / str(place)
        run(RunConfig(**SMALL | settings), out)
        assert load_config(out / "config.toml").differences(RunConfig(**SMALL | settings)) == []
        code, _, said = here("run", out / "config.toml", "--out", "again")
        assert code == 2 and "was given as an object in Python" in said and not (tmp_path / "again").exists()


def test_losses_metrics_and_splits():
    def loss(output, target):
        return nn.functional.cross_entropy(output, target) * 2

    def negative(output, target):
        return -float((output.argmax(1) == target).float().mean())

    def halves(labels, clients, seed):
        return np.array_split(np.arange(len(labels)), clients)

    with pytest.warns(Notice, match=r"not <function test_objects:.*loss>"):
        result = run(RunConfig(loss=loss, metrics=(negative, "top-5"), split=halves, **SMALL))
    names = list(result.history[-1].metrics)
    assert names[0].startswith("<function test_objects:") and names[1] == "top-5"
    assert result.history[-1].metrics[names[0]] == pytest.approx(-result.history[-1].accuracy, abs=1e-6)


@pytest.mark.parametrize("given", ["r2,mae", ["r2", "mae"], ("r2, mae",), ["r2,mae"]])
def test_metrics_are_one_list_however_they_are_written(given):
    config = RunConfig(loss="mse", metrics=given, patience=3)
    assert config.metrics == ("r2", "mae") and config.stop_on == "r2"
    assert make_config(loads(to_toml(config))) == config


@pytest.mark.parametrize("wrong", [{"metrics": 3}, {"metrics": [[]]}, {"loss": []}, {"loss": 3}, {"split": 3}])
def test_what_is_neither_a_name_nor_an_object_is_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
        RunConfig(**wrong)


def test_sweeps_take_objects(tmp_path):
    digits = load_dataset("digits")
    table = {**SMALL, "network": lambda: small((), 10), "sweep": {"data": [digits, replace(digits, name="again")]}}
    runs = expand(table)
    sweep(runs, tmp_path)
    assert len(runs) == 2 and all((tmp_path / planned.name / "model.fsz").exists() for planned in runs)
    with pytest.raises(ConfigError, match="twice"):
        expand({**SMALL, "sweep": {"data": [digits, load_dataset("digits")]}})
    assert isinstance(runs[0].config.data.value, Dataset)
