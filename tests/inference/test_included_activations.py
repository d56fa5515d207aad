"""Activations that a convolution includes give the bits of steps of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import every_width
from test_engine import agree, engine_of, enliven
from torch import nn

from fedsparsify.inference import planner
from fedsparsify.inference.lowering import builder


def with_hardswish(kernel: int, stride: int) -> nn.Module:
    """Hardswish after a 3 × 3, a 1 × 1 and a depthwise layer; the last one's output is read twice."""
    depthwise = nn.Conv2d(24, 24, kernel, stride, kernel // 2, groups=24)
    stem = nn.Conv2d(3, 10, 3, 2, 1), nn.Hardswish()
    return nn.Sequential(*stem, nn.Conv2d(10, 24, 1), nn.Hardswish(), depthwise, nn.Hardswish(), Twice())


class Twice(nn.Module):
    """Both a convolution's output and the activation of it are used, so that it cannot be included."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.activation, self.last = nn.Conv2d(24, 9, 1), nn.Hardswish(), nn.Linear(9, 4)
        self.mean = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return self.last(self.mean(x + self.activation(x)).flatten(1))


def activation_rows(text: str) -> int:
    rows = text.partition("rows of worker 0:\n")[2].partition("rows of worker 1:\n")[0].splitlines()
    return sum(row.split()[:1] == ["ACTIVATION"] for row in rows)


@every_width
@pytest.mark.parametrize(("side", "kernel", "stride"), [(64, 3, 1), (46, 5, 2), (9, 3, 1)])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_bits_are_those_of_a_step_of_its_own(
    lanes: int, side: int, kernel: int, stride: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module = enliven(with_hardswish(kernel, stride), 0.5)
    samples = np.random.default_rng(0).normal(size=(batch, 3, side, side)).astype(np.float32) * 3
    samples[0, 0, 2, 3] = np.nan
    included = engine_of(module, lanes, kernels="sparse")
    result, rows = included.run(samples), activation_rows(included.explain(samples.shape))
    monkeypatch.setattr(builder, "fusable_activations", lambda level, steps: {})
    apart = engine_of(module, lanes, kernels="sparse")
    np.testing.assert_array_equal(result, apart.run(samples))
    assert np.isnan(result[0]).any()
    assert rows < activation_rows(apart.explain(samples.shape))
    agree(module, included, batch, 3, side, side)


def test_workers_share_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = enliven(with_hardswish(5, 1), 0.5)
    samples = np.random.default_rng(0).normal(size=(1, 3, 96, 96)).astype(np.float32)
    expected = engine_of(module, threads=1, kernels="sparse").run(samples)
    monkeypatch.setattr(planner, "SHARED_VECTORS", 0)
    shared = engine_of(module, threads=2, kernels="sparse")
    for _ in range(20):
        assert np.array_equal(shared.run(samples), expected)


def test_dense_kernels_leave_activations_apart() -> None:
    torch.manual_seed(0)
    module = enliven(nn.Sequential(nn.Conv2d(3, 20, 3, 1, 1), nn.Hardswish(), nn.Conv2d(20, 4, 3), nn.Flatten()), 0.0)
    engine = engine_of(module, kernels="dense")
    assert activation_rows(engine.explain((1, 3, 32, 32))) == 1
    agree(module, engine, 1, 3, 32, 32)
