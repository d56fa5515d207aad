from __future__ import annotations

from copy import deepcopy
from math import prod

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file as load_torch_file
from torch import nn

from fedsparsify import RunConfig, run, save
from fedsparsify.cli import cli
from fedsparsify.errors import ConfigError, ModelError, WireError
from fedsparsify.export import export
from fedsparsify.networks import build, model_of
from fedsparsify.networks.state_facts import state_facts
from fedsparsify.networks.tracing import trace
from fedsparsify.scores import keep_top
from fedsparsify.wire.state import packed

SHAPE = (3, 32, 32)


def graph_of(module: nn.Module) -> dict[str, object]:
    return {"graph": [node.to_json() for node in trace(module)]}


def saved(path, module: nn.Module, shape=SHAPE, classes=10):
    """A module's file, nine tenths of it pruned, and the module with these weights."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif tensor.is_floating_point() and tensor.ndim == 1:
                tensor.normal_(0, 1, generator=generator)
    dense = model_of(module)
    model = dense.under(keep_top(np.abs(dense.trainable_weights), 0.9))
    module.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in model.tensors().items()}, strict=False)
    save(path, model, {"network": "test", "shape": list(shape), "classes": classes, **graph_of(module)})
    return module.eval()


def same_in_onnx_runtime(path, module, shape=SHAPE) -> None:
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(export(path, "onnx"), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {"input": x})
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["fc", "cnn", "vgg16", "resnet18", "resnet18-gn"])
def test_onnx_runtime_computes_what_torch_does(name, tmp_path):
    same_in_onnx_runtime(tmp_path / "model.fsz", saved(tmp_path / "model.fsz", build(name, SHAPE, 10, seed=1)))


class Mixed(nn.Module):
    """Every operation that the paper's networks do without."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8, affine=False), nn.SiLU()),
            *(nn.Conv2d(8, 8, 3, padding="same", dilation=2, groups=4), nn.Hardswish(), nn.LeakyReLU(0.2)),
            *(nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), nn.GELU(), nn.ReLU6(), nn.Tanh()),
            *(nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.Flatten(2), nn.Linear(25, 6)),
        )
        self.head = nn.Linear(48, 10, bias=False)

    def forward(self, x):
        x = self.body(x)
        x = x + torch.sigmoid(x)
        return self.head(torch.flatten(x, 1)).softmax(dim=1)


def test_every_other_operation_in_onnx_runtime(tmp_path):
    same_in_onnx_runtime(tmp_path / "m.fsz", saved(tmp_path / "m.fsz", Mixed(), (3, 33, 33)), (3, 33, 33))


def test_adaptive_pooling(tmp_path):
    def pooled(size):
        return nn.Sequential(nn.Conv2d(3, 10, 1), nn.AdaptiveAvgPool2d(size), nn.Flatten())

    for size in (1, 2, 5, (3, 40)):
        module = saved(
            tmp_path / "m.fsz", pooled(size), classes=10 * prod(size if isinstance(size, tuple) else (size, size))
        )
        same_in_onnx_runtime(tmp_path / "m.fsz", module)


class Odd(nn.Module):
    """Tied weights, buffers of every kind, and a running mean that belongs to no batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.again = self.norm
        self.plain = nn.BatchNorm1d(6, track_running_stats=False)
        self.register_buffer("running_mean", torch.rand(3))
        self.register_buffer("also", self.running_mean)
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("flags", torch.tensor([[True, False, True]]))
        self.register_buffer("index", torch.arange(5, dtype=torch.int32))
        self.register_buffer("empty", torch.zeros(0, 2, dtype=torch.uint8))
        self.register_buffer("gone", torch.ones(2, dtype=torch.int64), persistent=False)

    def forward(self, x):
        return self.plain(self.again(self.second(self.first(x))))


def strictly_loaded(path, make) -> None:
    """Both formats give a new network the whole state of the saved one, in its own types."""
    module = make()
    save(path, model_of(module), state_facts(module))
    expected = module.state_dict()
    of_torch = torch.load(export(path, "torch"), weights_only=True)
    for found in (of_torch, load_torch_file(export(path, "safetensors"))):
        make().load_state_dict(found, strict=True)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(found[name], tensor), name


def test_exports_load_strictly(tmp_path):
    strictly_loaded(tmp_path / "odd.fsz", Odd)
    strictly_loaded(tmp_path / "cnn.fsz", lambda: build("cnn", (3, 8, 8), 10, seed=1))
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.InstanceNorm1d(6, affine=True))
    strictly_loaded(tmp_path / "normed.fsz", lambda: deepcopy(normed))


def test_what_no_file_holds_is_named(tmp_path):
    module = Odd()
    module.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    save(tmp_path / "m.fsz", model_of(module), state_facts(module))
    for to in ("torch", "safetensors"):
        with pytest.raises(ModelError, match="does not hold 'phase'"):
            export(tmp_path / "m.fsz", to)


@pytest.mark.parametrize(
    "state",
    [
        5,
        {"aliases": {}, "buffers": {}},
        {"aliases": {"a": "none"}, "buffers": {}, "missing": []},
        {"aliases": {"first.weight": "second.bias"}, "buffers": {}, "missing": []},
        {"aliases": {"a": []}, "buffers": {}, "missing": []},
        *(
            {"aliases": {}, "buffers": {"b": buffer}, "missing": []}
            for buffer in (
                *(
                    5,
                    ["int64", [1]],
                    ["float64", [1], ""],
                    ["int8", [2], "!"],
                    ["int8", [2], "eJw="],
                    ["int8", [-1], ""],
                ),
                *(["int8", [1 << 40], ""], ["int8", [1] * 33, packed(np.zeros(1, np.int8))]),
                ["int8", [1], packed(np.zeros(2, np.int8))],
            )
        ),
    ],
)
def test_a_damaged_state_is_refused(tmp_path, state):
    save(tmp_path / "m.fsz", model_of(Odd()), {"state": state})
    with pytest.raises(WireError):
        export(tmp_path / "m.fsz", "torch")


def test_a_file_without_a_state_still_gets_its_counters(tmp_path):
    module = saved(tmp_path / "model.fsz", build("cnn", SHAPE, 10, seed=1))
    state = torch.load(export(tmp_path / "model.fsz", "torch"), weights_only=True)
    other = build("cnn", SHAPE, 10, seed=2)
    other.load_state_dict(state, strict=True)
    x = torch.ones(2, *SHAPE)
    torch.testing.assert_close(other.eval()(x), module(x), rtol=0, atol=0)
    assert load_torch_file(export(tmp_path / "model.fsz", "safetensors", tmp_path / "other.st")).keys() == state.keys()
    save(tmp_path / "bare.fsz", model_of(Odd()))
    assert "num_batches_tracked" not in torch.load(export(tmp_path / "bare.fsz", "torch"), weights_only=True)


def test_a_run_leaves_a_file_whose_export_loads_strictly(tmp_path, monkeypatch):
    (tmp_path / "tied_net.py").write_text(TIED)
    monkeypatch.syspath_prepend(tmp_path)
    run(RunConfig(network="tied_net:Net", rounds=1, epochs=1, clients=2), tmp_path / "run")
    state = torch.load(export(tmp_path / "run" / "model.fsz", "torch"), weights_only=True)
    build("tied_net:Net", (1, 8, 8), 10, seed=1).load_state_dict(state, strict=True)
    assert state["norm.num_batches_tracked"].dtype == torch.int64 and torch.equal(state["a.weight"], state["b.weight"])


TIED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.b.weight = self.a.weight
        self.register_buffer("index", torch.arange(3))

    def forward(self, x):
        return self.head(self.norm(self.b(torch.relu(self.a(x.flatten(1))))))
"""


def test_what_cannot_be_exported_says_why(tmp_path):
    model = model_of(build("fc", (4,), 2, seed=1))
    save(tmp_path / "bare.fsz", model)
    with pytest.raises(WireError, match="does not say what its network computes"):
        export(tmp_path / "bare.fsz", "onnx")
    save(tmp_path / "shapeless.fsz", model, graph_of(build("fc", (4,), 2, seed=1)))
    with pytest.raises(WireError, match="shape of a sample"):
        export(tmp_path / "shapeless.fsz", "onnx")
    with pytest.raises(ConfigError, match="Received: 'tflite'"):
        export(tmp_path / "bare.fsz", "tflite")


def test_the_commands_on_the_file_of_a_real_run(tmp_path):
    run(RunConfig(rounds=2, epochs=1, clients=2), tmp_path)
    model = str(tmp_path / "model.fsz")
    shown = CliRunner().invoke(cli, ["inspect", model], catch_exceptions=False).output
    assert (
        "1.weight" in shown and "█" in shown and "smaller than dense float32" in shown and "graph of 6 nodes" in shown
    )
    for to in ("safetensors", "onnx", "torch"):
        result = CliRunner().invoke(cli, ["export", model, "--to", to], catch_exceptions=False)
        assert result.exit_code == 0 and "bytes" in result.output
