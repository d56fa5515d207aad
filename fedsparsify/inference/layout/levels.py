"""Levels: runs of steps whose values lie in memory in the same way.

Input: steps with the shapes of their values. Output: levels, each with its grid of lanes and the block of each value.

The lanes of a vector are a grid of spatial blocks, of one image or of several: with a 4 × 4 grid, lane 5 holds the
block in the second row and second column. A 3 × 3 window then needs aligned loads only, pooling stays inside a lane,
and the same kernel serves one image and a batch. Deep layers have small images, so the grid becomes coarser from level
to level and more images share a vector; at 1 × 1 the lanes are images, and every operation fits. One image keeps the
finest grid for as long as any block fits, as a coarser one leaves lanes idle. Where a batch meets layers that kept most
of their weights, blocks are twice as wide as high, as Winograd's larger tile is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, prod

import numpy as np

from ...graph import INPUT
from ..frontend.fusion import Shape
from ..frontend.steps import Add, Constant, Conv, Flatten, MatMul, Norm, Pair, Pool, Relayout, Softmax, Step
from .gates import gates_of

GRIDS: dict[int, tuple[tuple[Pair, ...], ...]] = {  # of each level: the usual one, the one for wide blocks
    32: (((4, 4),), ((2, 2),), ((1, 1),)),  # of 16-bit integers
    16: (((4, 4), (4, 2)), ((2, 2), (2, 1)), ((1, 1),)),
    8: (((2, 4), (4, 2)), ((2, 2), (2, 1)), ((1, 1),)),
    4: (((2, 2), (2, 1)), ((1, 1),)),
}
FREE = (Relayout, Constant, MatMul, Norm, Softmax)  # steps that fit any grid, as they need no neighbours
DENSE_ENOUGH = 0.2  # density from which Winograd's larger tile takes less time than the weights that are left
COMFORTABLE = 4  # pixels per side of a block below which a batch is better served by a coarser grid
ROUNDINGS = (1, 2, 4, 8, 16)
WASTE = 1.2  # factor by which rounding may lengthen a block's side
MOVE_PRODUCTS = 32  # vectors of products that take as long as moving a float to another level and another one back
MOST_WASTE = 1.5  # the same of one image, whose next coarser grid leaves three quarters of the lanes idle
MOVED_PRODUCTS = 6  # vectors of products that take as long as moving a float to blocks of another size
PASS_PRODUCTS = 2  # the same of a step that is no convolution, per vector


@dataclass(frozen=True)
class Level:
    """A run of steps that share a grid, and the block of each value it touches."""

    grid: Pair
    steps: tuple[Step, ...]
    blocks: dict[str, Pair]
    bands: int = 1  # of the image's rows, one per worker
    gates: frozenset[str] = frozenset()  # values of one pixel that all lanes of an image hold


def windows(step: Conv | Pool, axis: int) -> tuple[int, int, int]:
    """Span, stride and padding of a step along an axis."""
    span = (step.weight.shape[2 + axis] - 1) * step.dilation[axis] + 1 if isinstance(step, Conv) else step.kernel[axis]
    return span, step.stride[axis], step.padding[axis]


def reach(step: Conv | Pool, axis: int, block: int, outputs: int) -> Pair:
    """How many pixels before and after a block `outputs` windows touch."""
    span, stride, padding = windows(step, axis)
    return padding, max(0, (outputs - 1) * stride - padding + span - block)


def levels_of(steps: Sequence[Step], shapes: dict[str, Shape], lanes: int, single: bool) -> list[Level]:
    """Divide the steps into levels, of which each serves as many steps as it can.

    A level of one image is followed by another of the same grid, with blocks rounded anew, where that serves any step.
    """
    if single:
        return _levels_of_one(steps, shapes, [usual for usual, *_ in _grids(lanes)])
    levels, start = [], 0
    for usual, *others in _grids(lanes):
        level = _level(steps[start:], shapes, usual, COMFORTABLE, WASTE)
        for wide in others:
            if mostly_dense(level.steps, shapes):
                trial = _level(steps[start:], shapes, wide, COMFORTABLE, WASTE)
                level = trial if len(trial.steps) >= len(level.steps) else level
        if level.steps:
            levels.append(level)
        start += len(level.steps)
    return levels


def _grids(lanes: int) -> list[tuple[Pair, ...]]:
    """The grids of levels; the second is for tokens that lie in one row."""
    finest, *others = GRIDS[lanes]
    return [finest, ((1, lanes),), *others]


def _levels_of_one(steps: Sequence[Step], shapes: dict[str, Shape], grids: Sequence[Pair]) -> list[Level]:
    """Levels of one image, each of the finest grid that serves the next step, rounded no more than needed."""
    levels, start = [], 0
    while start < len(steps):
        trials = (_level(steps[start:], shapes, grid, 1, waste) for grid in grids for waste in (WASTE, MOST_WASTE))
        level = next(level for level in trials if level.steps)
        levels.append(_tightened(_cut(level, shapes, grids[0]), shapes))
        start += len(levels[-1].steps)
    return levels


def _tightened(level: Level, shapes: dict[str, Shape]) -> Level:
    """A level of rounded blocks, or its first steps with smaller ones where that saves more than moving values takes.

    An image of 224 pixels halves five times in blocks of 64 only, by a third larger than it is; up to 28 pixels, blocks
    of 56 fit.
    """
    if level.grid == (1, 1):
        return level
    best, saved = level, 0.0
    whole = list(accumulate(_products(step, shapes, level.blocks) for step in level.steps))
    moved = _crossing(level, shapes)
    for rounding in ROUNDINGS:
        blocks, count = _longest(level.steps, shapes, level.grid, rounding, 1, WASTE, level.gates)
        tight = accumulate(_products(step, shapes, blocks) for step in level.steps[:count])
        for number, (less, more) in enumerate(zip(tight, whole, strict=False), 1):
            gain = more - less - MOVED_PRODUCTS * moved[number - 1]
            if gain > saved and number < len(level.steps):
                kept = level.steps[:number]
                touched = {name: blocks[name] for step in kept for name in (*step.inputs, step.name)}
                best, saved = Level(level.grid, kept, touched, gates=level.gates), gain
    return best


def _products(step: Step, shapes: dict[str, Shape], blocks: dict[str, Pair]) -> float:
    """Vectors of products of a step, or what takes as long."""
    pixels = prod(blocks[step.name])
    return pixels * (step.weight.places.size if isinstance(step, Conv) else PASS_PRODUCTS * shapes[step.name][0])


def _crossing(level: Level, shapes: dict[str, Shape]) -> list[float]:
    """Per step of a level, the floats that later steps read of what was there by then; no gate may be among them."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(level.steps):
        for name in (*step.inputs, step.name):
            first.setdefault(name, number)
        last |= dict.fromkeys(step.inputs, number)
    changes = np.zeros((2, len(level.steps)))
    for name, number in last.items():
        kind, floats = (1, 1) if name in level.gates else (0, prod(shapes[name]))
        changes[kind, first[name]] += floats
        changes[kind, number] -= floats
    floats, gates = changes.cumsum(1)
    return [float(value) for value in np.where(gates > 0, inf, floats)]


def _cut(level: Level, shapes: dict[str, Shape], finest: Pair) -> Level:
    """A level of a coarse grid, up to where the finest serves layers that save more than moving their input takes."""
    if level.grid[0] * level.grid[1] >= finest[0] * finest[1]:
        return level
    for start in range(1, len(level.steps)):
        first = level.steps[start]
        if isinstance(first, Conv) and shapes[first.name][1:] != (1, 1):
            finer = _level(level.steps[start:], shapes, finest, 1, WASTE)
            saved = sum(
                step.weight.places.size * (prod(level.blocks[step.name]) - prod(finer.blocks[step.name]))
                for step in finer.steps
                if isinstance(step, Conv)
            )
            if saved > MOVE_PRODUCTS * prod(shapes[first.inputs[0]]):
                kept = level.steps[:start]
                blocks = {name: level.blocks[name] for step in kept for name in (*step.inputs, step.name)}
                return Level(level.grid, kept, blocks, gates=level.gates)
    return level


def mostly_dense(steps: Sequence[Step], shapes: dict[str, Shape]) -> bool:
    """Whether most products of some steps belong to layers that Winograd serves."""
    products, dense = 0, 0
    for step in steps:
        if isinstance(step, Conv):
            count = prod(step.weight.shape) * prod(shapes[step.name][1:])
            products += count
            dense += count * winograd_fits(step) * (step.weight.density > DENSE_ENOUGH)
    return 2 * dense > products


def winograd_fits(step: Conv) -> bool:
    """Whether a convolution is of the kind that Winograd's transforms are for."""
    return step.groups == 1 and step.weight.shape[2:] == (3, 3) and step.stride == step.dilation == (1, 1)


def _level(steps: Sequence[Step], shapes: dict[str, Shape], grid: Pair, least: int, waste: float) -> Level:
    """As many steps as a grid can serve with blocks of `least` pixels per side, which rounding lengthens by `waste`."""
    gates = gates_of(steps, shapes) if grid != (1, 1) else frozenset()
    trials = [_longest(steps, shapes, grid, rounding, least, waste, gates) for rounding in ROUNDINGS]
    blocks, count = max(trials, key=lambda trial: (trial[1], -sum(map(prod, trial[0].values()))))
    return Level(grid, tuple(steps[:count]), blocks, gates=gates)


def _longest(
    steps: Sequence[Step],
    shapes: dict[str, Shape],
    grid: Pair,
    rounding: int,
    least: int,
    waste: float,
    gates: frozenset[str],
) -> tuple[dict[str, Pair], int]:
    """How many steps fit a grid when blocks are rounded up, and their blocks."""
    blocks: dict[str, Pair] = {}
    for count, step in enumerate(steps):
        entering = {name: _block(shapes[name], grid, rounding) for name in step.inputs if name not in blocks}
        entering |= {name: (1, 1) for name in entering if name in gates}
        if any(
            b > waste * a
            for n, r in entering.items()
            for a, b in zip(_block(shapes[n], grid, 1), r, strict=True)
            if n not in gates
        ):
            return blocks, count
        inputs = {name: blocks.get(name) or entering[name] for name in step.inputs}
        made = _fit(step, shapes, inputs, grid, least, gates)
        if made is None:
            return blocks, count
        blocks |= entering
        blocks[step.name] = made
    return blocks, len(steps)


def _block(shape: Shape, grid: Pair, rounding: int) -> Pair:
    if grid == (1, 1):
        return shape[1:]
    sides = [ceil(side / (g * rounding)) * rounding for side, g in zip(shape[1:], grid, strict=True)]
    return sides[0], sides[1]


def _fit(
    step: Step, shapes: dict[str, Shape], blocks: dict[str, Pair], grid: Pair, least: int, gates: frozenset[str]
) -> Pair | None:
    """The block that a step gives, or None where it does not fit the grid."""
    if grid == (1, 1):
        return shapes[step.name][1:]
    if step.name in gates:
        return 1, 1
    if grid[0] == 1 and not _in_line(step, shapes):
        return None
    if isinstance(step, FREE):
        return _free_block(step, shapes, blocks, grid)
    block = blocks[step.inputs[0]]
    if shapes[step.inputs[0]][1:] == (1, 1):
        return None
    match step:
        case Flatten() | Pool(size=(_, _)):
            return None
        case Pool(mean=True) if step.ceil or (any(step.padding) and not step.count_padding):
            return None
        case Conv() | Pool():
            made = []
            for axis in (0, 1):
                span, stride, _ = windows(step, axis)
                outputs, rest = divmod(block[axis], stride)
                fits = not rest and max(reach(step, axis, block[axis], outputs)) <= block[axis]
                roomy = span == stride or block[axis] >= least
                if not (fits and roomy and grid[axis] * outputs >= shapes[step.name][1 + axis]):
                    return None
                made.append(outputs)
            return made[0], made[1]
        case Add(gated=True):
            return block if step.inputs[1] in gates else None
        case Add() if block != blocks[step.inputs[1]]:
            return None
    return block


def _in_line(step: Step, shapes: dict[str, Shape]) -> bool:
    """Whether a step works pixel by pixel, or anyhow, on values of one row."""
    plain = not isinstance(step, Conv) or (step.weight.shape[2:] == step.stride == (1, 1) and step.padding == (0, 0))
    read = () if isinstance(step, Relayout) else step.inputs
    return plain and not isinstance(step, Pool) and all(shapes[name][1] == 1 for name in (*read, step.name))


def _free_block(step: Step, shapes: dict[str, Shape], blocks: dict[str, Pair], grid: Pair) -> Pair | None:
    """The block of a step that fits any grid: an input's, where it has its pixels; no single pixels or lines."""
    made = shapes[step.name][1:]
    beside = isinstance(step, Constant) and grid[0] == 1  # a class token, which joins others that lie in one row
    if (prod(made) == 1 and not beside) or (made[0] == 1 and grid[0] > 1):
        return None
    alike = [blocks[name] for name in step.inputs if shapes[name][1:] == made]
    return alike[0] if alike else _block(shapes[step.name], grid, 1)


def inputs_of(level: Level) -> list[str]:
    """Values that a level reads but does not make, the network's input apart."""
    made = {step.name for step in level.steps}
    read = dict.fromkeys(name for step in level.steps for name in step.inputs)
    return [name for name in read if name not in made and name != INPUT]
