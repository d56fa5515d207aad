"""PyTorch, ONNX Runtime and the engine on random pools, convolutions and dense layers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from fedsparsify import save
from fedsparsify.export import export
from fedsparsify.inference import Engine
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace


def agree(folder, module: nn.Module, shape: tuple[int, ...]) -> None:
    module.eval()
    generator = torch.Generator().manual_seed(0)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.1, 1, generator=generator)
    x = torch.randn(3, *shape, generator=generator)
    with torch.no_grad():
        expected = module(x).numpy()
    path = folder / "m.fsz"
    graph = [node.to_json() for node in trace(module)]
    facts = {"network": "t", "shape": list(shape), "classes": expected.shape[1], "graph": graph}
    save(path, model_of(module), facts)
    file = export(path, "onnx")
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def same(name: str, found: np.ndarray) -> None:
        assert found.shape == expected.shape, name
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale, err_msg=f"{name}: {module}")

    same("ONNX Runtime", session.run(None, {"input": x.numpy()})[0])
    same("the engine", Engine(path, 1).run(x.numpy()))


def after_conv(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 1), *layers, nn.Flatten())


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2, padding=1, ceil_mode=True),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.MaxPool2d(2, stride=3, ceil_mode=True),
        nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d((2, 3), stride=(3, 2), padding=(1, 0), ceil_mode=True),
        nn.AdaptiveAvgPool2d((2, 3)),
        nn.AdaptiveAvgPool2d((3, 4)),
        nn.AdaptiveAvgPool2d(11),
        nn.Conv2d(4, 4, (3, 5), padding="same", dilation=(2, 1)),
        nn.Conv2d(4, 8, 3, stride=(2, 3), padding=(0, 2), dilation=(1, 2), groups=2),
    ],
    ids=str,
)
def test_layers_that_runtimes_read_differently(tmp_path, layer):
    agree(tmp_path, after_conv(layer), (2, 8, 9))


def random_layer(rng: np.random.Generator) -> nn.Module:
    kernel, stride = (tuple(int(n) for n in rng.integers(1, 5, 2)) for _ in range(2))
    half = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
    pick = rng.integers(5)
    if pick == 0:
        return nn.MaxPool2d(kernel, stride, half, ceil_mode=bool(rng.integers(2)))
    if pick == 1:
        counts = {"ceil_mode": bool(rng.integers(2)), "count_include_pad": bool(rng.integers(2))}
        return nn.AvgPool2d(kernel, stride, half, **counts)
    if pick == 2:
        return nn.AdaptiveAvgPool2d(tuple(int(n) for n in rng.integers(1, 13, 2)))
    if pick == 3:
        return nn.Conv2d(
            4, 4, kernel, stride, half, dilation=int(rng.integers(1, 3)), groups=int(rng.choice([1, 2, 4]))
        )
    return nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())


def random_network(rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]] | None:
    shape = (2, int(rng.integers(5, 13)), int(rng.integers(5, 13)))
    module = after_conv(random_layer(rng), random_layer(rng))
    try:
        with torch.no_grad():
            return module, shape if module.eval()(torch.zeros(1, *shape)).numel() else ()
    except RuntimeError:  # a window larger than its image
        return None


@pytest.mark.parametrize("seed", range(24))
def test_random_layers(tmp_path, seed):
    rng = np.random.default_rng(seed)
    while (drawn := random_network(rng)) is None or not drawn[1]:
        pass
    agree(tmp_path, *drawn)


def test_dense_layers_of_values_with_more_axes(tmp_path):
    layers = (nn.Flatten(2), nn.Linear(20, 6), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4))
    agree(tmp_path, nn.Sequential(*layers), (3, 4, 5))
