"""Networks and images as at 224 pixels, made small: odd blocks, strides, depthwise layers, images one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import every_width
from test_engine import agree, engine_of, enliven
from torch import nn
from torch.nn.functional import relu6

from fedsparsify.inference.frontend.fusion import fuse
from fedsparsify.inference.frontend.steps import Conv
from fedsparsify.inference.kernels.program_table import Kind
from fedsparsify.inference.kernels.tiles import line_tile
from fedsparsify.inference.layout.block_cost import blocks_pay
from fedsparsify.inference.layout.levels import levels_of
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace


class Inverted(nn.Module):
    """A block as in MobileNetV2: a wide 1 × 1, a depthwise or grouped 3 × 3, a narrow 1 × 1, a sum."""

    def __init__(self, channels: int, wide: int, stride: int, groups: int) -> None:
        super().__init__()
        self.expand, self.reduce = nn.Conv2d(channels, wide, 1), nn.Conv2d(wide, channels, 1)
        self.spatial = nn.Conv2d(wide, wide, 3, stride, 1, groups=groups)
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.reduce(relu6(self.spatial(relu6(self.expand(x)))))
        return x + y if self.stride == 1 else y


def mobile(groups: int, wide: int = 36) -> nn.Module:
    """A stem and some blocks, to one output per class."""
    blocks = [Inverted(12, wide, stride, groups) for stride in (1, 2, 1, 2, 1)]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 7)
    return nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU(), *blocks, *ends)


@every_width
@pytest.mark.parametrize(("side", "groups"), [(56, 36), (44, 36), (30, 12)])
def test_depthwise_and_grouped_layers(lanes: int, side: int, groups: int) -> None:
    torch.manual_seed(0)
    module = enliven(mobile(groups), 0.5)
    agree(module, engine_of(module, lanes), 1, 3, side, side)
    agree(module, engine_of(module, lanes), 3, 3, side, side)


def test_one_image_keeps_the_finest_grid() -> None:
    module = mobile(36).eval()
    steps = fuse(trace(module), model_of(module).tensors())
    shapes = steps.shapes((3, 224, 224))
    levels = levels_of(steps.steps, shapes, lanes=16, single=True)
    grids = {step.name: level.grid for level in levels for step in level.steps if isinstance(step, Conv)}
    assert {shapes[name][1] for name in grids} == {112, 56, 28, 1}
    assert {grid for name, grid in grids.items() if shapes[name][1] > 1} == {(4, 4)}


def large_kernel() -> nn.Module:
    """A 7 × 7 depthwise layer on images of 7 × 7 pixels, then 1 × 1 layers and the next of them."""
    wide = nn.Conv2d(64, 256, 1), nn.GELU(), nn.Conv2d(256, 64, 1)
    spatial = (nn.Conv2d(64, 64, 7, padding=3, groups=64) for _ in range(2))
    return nn.Sequential(next(spatial), *wide, next(spatial), nn.Flatten(), nn.Linear(64 * 49, 7))


def test_a_finer_grid_follows_where_it_saves_more_than_moves_take() -> None:
    module = large_kernel().eval()
    steps = fuse(trace(module), model_of(module).tensors())
    levels = levels_of(steps.steps, steps.shapes((64, 7, 7)), lanes=16, single=True)
    assert [(level.grid, len(level.steps)) for level in levels] == [((2, 2), 1), ((4, 4), 3), ((2, 2), 1), ((1, 1), 2)]


@every_width
def test_levels_back_and_forth(lanes: int) -> None:
    torch.manual_seed(0)
    module = enliven(large_kernel(), 0.5)
    agree(module, engine_of(module, lanes), 1, 64, 7, 7)


@pytest.mark.parametrize(
    ("vectors", "lanes", "tile"), [(13, 16, 13), (25, 8, 13), (50, 4, 13), (16, 16, 16), (196, 16, 16), (12, 16, 8)]
)
def test_tiles_of_lines(vectors: int, lanes: int, tile: int) -> None:
    assert line_tile(vectors, lanes) == tile


def test_large_images_are_served_one_by_one() -> None:
    module = enliven(mobile(36), 0.9)
    steps = fuse(trace(module), model_of(module).tensors())
    for side, pay in ((32, True), (448, False)):
        assert blocks_pay(steps.steps, steps.shapes((3, side, side)), 16, samples=8) == pay


@pytest.mark.parametrize(("groups", "wide"), [(36, 36), (6, 36), (4, 64)])
def test_workers_divide_groups(groups: int, wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsparsify.inference.planner.SHARED_VECTORS", 0)
    torch.manual_seed(0)
    module = enliven(mobile(groups, wide), 0.6)
    batch = np.random.default_rng(0).normal(size=(1, 3, 60, 60)).astype(np.float32)
    alone, *shared = (engine_of(module, threads=threads, kernels="sparse") for threads in (1, 2, 3))
    expected = alone.run(batch)
    for engine in shared:
        assert np.array_equal(engine.run(batch), expected)
        (program,) = (plan.shared for plan in engine._plans.values())
        assert program is not None
        rows = zip(program.tables[0], program.row_steps, strict=True)
        written = [int(row["channels"]) for row, name in rows if "spatial" in name and row["kind"] == Kind.SPARSE]
        assert min(written) < wide
