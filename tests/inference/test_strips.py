"""Strips: chains of steps that are computed a few channels at a time give the bits of whole steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import every_width
from test_engine import agree, engine_of, enliven
from torch import nn

from fedsparsify.inference import planner
from fedsparsify.inference.layout import strips


def chain(stride: int, kernel: int) -> nn.Module:
    """A stem with a pool, a wide 1 × 1, activations, a depthwise layer and a narrow 1 × 1."""
    wide, border = 40, kernel // 2
    stem = nn.Conv2d(3, 20, 3, 2, 1), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    body = nn.Conv2d(20, wide, 1), nn.Hardswish(), nn.Conv2d(wide, wide, kernel, stride, border, groups=wide), nn.SiLU()
    return nn.Sequential(*stem, *body, nn.Conv2d(wide, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 7))


@every_width
@pytest.mark.parametrize(("side", "stride", "kernel"), [(64, 1, 3), (60, 2, 5)])
def test_strips_change_no_bits(
    lanes: int, side: int, stride: int, kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module = enliven(chain(stride, kernel), 0.5)
    batch = np.random.default_rng(0).normal(size=(1, 3, side, side)).astype(np.float32)
    whole = engine_of(module, lanes, kernels="sparse")
    expected = whole.run(batch)
    monkeypatch.setattr(strips, "STRIP_BYTES", 1)
    divided = engine_of(module, lanes, kernels="sparse")
    assert np.array_equal(divided.run(batch), expected)
    arenas = [max(p.arena_floats for p in engine._planner.programs.values()) for engine in (whole, divided)]
    assert arenas[1] < arenas[0]
    agree(module, divided, 1, 3, side, side)
    agree(module, divided, 5, 3, side, side)


def test_workers_divide_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = enliven(chain(1, 3), 0.5)
    batch = np.random.default_rng(0).normal(size=(1, 3, 96, 96)).astype(np.float32)
    expected = engine_of(module, threads=1, kernels="sparse").run(batch)
    monkeypatch.setattr(strips, "STRIP_BYTES", 1)
    monkeypatch.setattr(planner, "SHARED_VECTORS", 0)
    shared = engine_of(module, threads=2, kernels="sparse")
    shared.run(batch)
    assert any(len(program.tables) == 2 for program in shared._planner.programs.values())
    for _ in range(20):
        assert np.array_equal(shared.run(batch), expected)


def test_groups_of_several_channels_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    grouped = nn.Conv2d(6, 36, 3, 1, 1, groups=3), nn.SiLU(), nn.Conv2d(36, 4, 1)
    module = enliven(nn.Sequential(*grouped, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 0.5)
    monkeypatch.setattr(strips, "STRIP_BYTES", 1)
    agree(module, engine_of(module, kernels="sparse"), 1, 6, 32, 32)
    agree(module, engine_of(module, kernels="sparse"), 17, 6, 32, 32)
