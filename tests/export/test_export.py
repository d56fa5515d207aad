from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file
from torch import nn

from fedsparsify import RunConfig, load, run, save
from fedsparsify.cli import cli
from fedsparsify.errors import ConfigError, ModelError, WireError
from fedsparsify.export import export
from fedsparsify.networks import build, model_of
from fedsparsify.scores import keep_top
from fedsparsify.tracing import graph_facts

SHAPE = (3, 32, 32)


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
    save(path, model, {"network": "test", "shape": list(shape), "classes": classes, **graph_facts(module)})
    return module.eval()


def same_in_onnx_runtime(path, module, shape=SHAPE) -> None:
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    session = onnxruntime.InferenceSession(export(path, "onnx"), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {"input": x})
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["fc", "cnn", "vgg16"])
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

    same_in_onnx_runtime(tmp_path / "m.fsz", saved(tmp_path / "m.fsz", pooled(1)))
    saved(tmp_path / "two.fsz", pooled(2))
    with pytest.raises(ModelError, match="adaptive pooling to 1 × 1 only"):
        export(tmp_path / "two.fsz", "onnx")


def test_torch_loads_it_strictly(tmp_path):
    module = saved(tmp_path / "model.fsz", build("cnn", SHAPE, 10, seed=1))
    state = torch.load(export(tmp_path / "model.fsz", "torch"), weights_only=True)
    other = build("cnn", SHAPE, 10, seed=2)
    other.load_state_dict(state, strict=True)
    x = torch.ones(2, *SHAPE)
    torch.testing.assert_close(other.eval()(x), module(x), rtol=0, atol=0)


def test_safetensors_has_every_tensor(tmp_path):
    saved(tmp_path / "model.fsz", build("cnn", SHAPE, 10, seed=1))
    found = load_file(export(tmp_path / "model.fsz", "safetensors", tmp_path / "other.st"))
    expected = load(tmp_path / "model.fsz").tensors()
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_what_cannot_be_exported_says_why(tmp_path):
    model = model_of(build("fc", (4,), 2, seed=1))
    save(tmp_path / "bare.fsz", model)
    with pytest.raises(WireError, match="does not say what its network computes"):
        export(tmp_path / "bare.fsz", "onnx")
    save(tmp_path / "shapeless.fsz", model, graph_facts(build("fc", (4,), 2, seed=1)))
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
