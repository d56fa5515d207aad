"""Networks as users write them: training, evaluation, engine and ONNX agree with the module, or it is said first."""

from __future__ import annotations

import os
import sys
import types
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, weight_norm

from fedsparsify import RunConfig, run
from fedsparsify.data import Dataset
from fedsparsify.errors import ConfigError
from fedsparsify.export import export
from fedsparsify.federation.environment import Environment, build_for
from fedsparsify.inference import Engine
from fedsparsify.notices import Notice
from fedsparsify.training.backends.autograd import OneByOne
from fedsparsify.training.flat import FlatModule
from fedsparsify.wire.artefact import load_facts

CHANNELS = 4


def pictures(count=22, classes=3) -> Dataset:
    rng = np.random.default_rng(3)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 2, 6, 6)).astype(np.float32) + y[:, None, None, None].astype(np.float32) / 2
    return Dataset("pictures", x, y, x[:9], y[:9])


class Block(nn.Module):
    """One of the ways in which people write a layer; the input may have aliases outside."""

    def __init__(self, kind: str, inplace: bool) -> None:
        super().__init__()
        self.kind, self.act = kind, nn.ReLU(inplace=inplace)
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        if kind == "batch norm":
            self.norm = nn.BatchNorm2d(CHANNELS)
        if kind == "decoder":
            self.up = nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2)
        if kind == "assigned buffer":
            self.register_buffer("level", torch.zeros(()))
        if kind == "updated buffer":
            self.register_buffer("level", torch.ones(()), persistent=False)
        if kind == "counter":
            self.calls = 0
        if kind == "hook":
            self.conv.register_forward_hook(lambda module, given, result: result * 0.5)
        if kind == "pre-hook":
            self.conv.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        if kind == "parameter hook":
            self.conv.weight.register_hook(lambda gradient: gradient * 0.1)
        if kind == "old weight norm":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                self.conv = weight_norm(self.conv)
        if kind == "weight norm":
            self.conv = parametrizations.weight_norm(self.conv)
        if kind == "tied":
            self.twin = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
            self.twin.weight = self.conv.weight
        if kind == "own forward":
            self.act.forward = lambda x: x.clamp(min=-1)

    def forward(self, x):
        match self.kind:
            case "pre-activation":
                return self.conv(self.act(x)) + x
            case "statement":
                F.relu(x, inplace=self.act.inplace)
                return self.conv(x) + x
            case "written over":
                return x + torch.relu_(x) if self.act.inplace else x + torch.relu(x)
            case "aliased sum":
                out = alias = self.conv(x)
                out += x
                return self.act(out) + alias
            case "not differentiable":
                return self.conv(self.act(x)).add_(x.add_(1))
            case "add_":
                return self.conv(x).add_(x) + x
            case "flat view":
                flat = x.flatten(1)
                self.act(x)
                return x + flat.view(x.shape)
            case "batch norm":
                return self.act(self.norm(self.conv(x))) + x
            case "assigned buffer":
                if self.training:
                    self.level = 0.9 * self.level + 0.1 * x.detach().mean()
                return self.conv(x - self.level)
            case "updated buffer":
                if self.training:
                    self.level.mul_(0.9)
                return self.conv(x * self.level)
            case "counter":
                self.calls += 1
                return self.conv(x) * (1 + 0.01 * self.calls if self.training else 1.0)
            case "decoder":
                return F.mish(self.up(F.max_pool2d(self.conv(x), 2))) + x
            case "resized":
                return F.interpolate(F.max_pool2d(self.conv(x), 2), scale_factor=2) + x
            case "tied":
                return self.act(self.twin(self.act(self.conv(x)))) + x
            case "detached weight":
                self.conv.weight.data = self.conv.weight.data.clamp(-0.2, 0.2)
                return self.conv(x)
        return self.act(self.conv(x)) + x


def network(kinds, inplace):
    def make():
        blocks = [Block(kind, inplace) for kind in kinds]
        head = [nn.AvgPool2d(3), nn.Flatten(), nn.Linear(CHANNELS * 4, 3)]
        return nn.Sequential(nn.Conv2d(2, CHANNELS, 3, padding=1), *blocks, *head)

    return make


KINDS = (
    *("pre-activation", "statement", "written over", "aliased sum", "add_", "flat view", "batch norm", "plain"),
    *("assigned buffer", "updated buffer", "counter", "hook", "pre-hook", "parameter hook", "own forward"),
    *("old weight norm", "weight norm", "tied", "detached weight", "not differentiable"),
    *("decoder", "resized"),
)


def trained(make, monkeypatch, out=None, environment=None):
    """A short run of a network: its result, and the notices that came before and after its first round."""
    module = types.ModuleType("users_module")
    module.net = make
    monkeypatch.setitem(sys.modules, "users_module", module)
    config = RunConfig(
        network="users_module:net", rounds=2, epochs=2, clients=3, batch_size=5, lr=0.02, sparsity=0.5, momentum=0.5
    )
    rounds, early = [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Notice)
        result = run(
            config,
            out,
            on_round=lambda entry: (rounds.append(entry), early.append(len(caught))),
            dataset=pictures(),
            environment=environment and environment(config, pictures()),
        )
    notices = [str(w.message) for w in caught if w.category is Notice]
    assert early[0] == len(caught), "everything is said before the first round"
    return config, result, notices


class Plain(Environment):
    """A machine that trains by autograd alone, one client after another."""

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.cohort.backend = OneByOne(self.cohort.setup)


def agree(make, monkeypatch, folder):
    """Train, resume nothing, run the file three ways."""
    try:
        config, result, notices = trained(make, monkeypatch, folder / "run")
    except ConfigError as error:  # PyTorch's own autograd refuses some writes in place
        assert "modified by an inplace operation" in str(error)
        assert not (folder / "run").exists()
        return [str(error)]
    _, again, _ = trained(make, monkeypatch, environment=Plain)
    assert np.allclose(result.model.weights, again.model.weights, rtol=1e-4, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        reference = FlatModule(build_for(config, pictures()), torch.device("cpu"))
    reference.load(result.model)
    reference.module.eval()
    x = pictures().x_test
    with torch.no_grad():
        expected = reference.logits(torch.from_numpy(x)).numpy()
    assert result.history[-1].accuracy == pytest.approx((expected.argmax(1) == pictures().y_test).mean())
    path = folder / "run" / "model.fsz"
    if "graph" not in load_facts(path):
        assert any("no graph" in text for text in notices)
        return notices
    assert not any("no graph" in text for text in notices)
    tolerance = {"rtol": 1e-4, "atol": 1e-4 * np.abs(expected).max()}
    assert np.allclose(Engine(path).run(x), expected, **tolerance)
    exported = export(path, "onnx", folder / "model.onnx")
    session = onnxruntime.InferenceSession(exported or folder / "model.onnx")
    assert np.allclose(session.run(None, {"input": x})[0], expected, **tolerance)
    return notices


@pytest.mark.parametrize("kind", KINDS)
def test_each_way_to_write_a_layer(kind, monkeypatch, tmp_path):
    notices = agree(network([kind], True), monkeypatch, tmp_path)
    traced = {
        "pre-activation",
        "statement",
        "written over",
        "aliased sum",
        "add_",
        "batch norm",
        "plain",
        "tied",
        "decoder",
    }
    exported = {"flat view", "assigned buffer", "resized"}  # by torch.export
    assert bool(notices) == (kind not in traced | exported | {"parameter hook"})


@settings(max_examples=int(os.environ.get("NETWORKS", "6")), deadline=None, derandomize=True)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=4), inplace=st.booleans())
def test_mixed(kinds, inplace, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        agree(network(kinds, inplace), patch, tmp_path_factory.mktemp("mixed"))


@pytest.mark.parametrize("kind", ["assigned buffer", "updated buffer", "counter", "detached weight"])
def test_a_network_with_state_resumes_to_the_same_bytes(kind, monkeypatch, tmp_path):
    make = network([kind, "batch norm"], True)
    config, whole, _ = trained(make, monkeypatch)

    class Stop(Exception):
        pass

    def stop(entry):
        raise Stop

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        with pytest.raises(Stop):
            run(config, tmp_path / "run", on_round=stop, dataset=pictures())
        resumed = run(config, tmp_path / "run", resume=True, dataset=pictures())
    assert [entry.round for entry in resumed.history] == [1, 2]
    assert resumed.model.same_as(whole.model)
