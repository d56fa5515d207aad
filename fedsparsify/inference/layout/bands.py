"""Bands: the first layers of an image that several workers share are divided by rows.

Input: levels, and the kernel that was chosen for each convolution. Output: levels, the first of which may be in bands.

Workers that divide the channels read half of their inputs from another core's cache, halos included. Where each takes
a band of the image's rows, only the rows along the seams cross over. Bands need many rows, so that only the first
layers have them. They end after a pool, or another step that makes the image smaller, where least is left to be moved.
In bands each worker reads all weights of a layer. Dense layers have many, so that bands pay from two sparse layers on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ...graph import INPUT
from ..frontend.fusion import Shape
from ..frontend.steps import Activation, Add, Affine, Conv, Pair, Pool, Step
from ..kernels.program_table import Kind
from ..kernels.tiles import TILES, tile_for
from ..kernels.winograd_numbers import ROWS
from .levels import FREE, Level, reach

LEAST_TILE = 8  # vectors of a tile below which the sparse kernel adds in another order, and is slower


def in_bands(
    levels: Sequence[Level], shapes: Mapping[str, Shape], lanes: int, workers: int, kinds: Mapping[str, Kind]
) -> list[Level]:
    """Divide the first steps into bands for as long as this is faster. Results stay the same to the bit."""
    first, *rest = levels
    last = 0
    if first.grid != (1, 1) and _fits(shapes[INPUT], first.blocks.get(INPUT, (1, 1)), first.grid, workers):
        for count, step in enumerate(first.steps):
            output = not rest and step is first.steps[-1]
            if output or not _divides(step, first, shapes, lanes, workers, kinds):
                break
            if step.inputs and first.blocks[step.name] < first.blocks[step.inputs[0]]:
                last = count + 1
    if sum(kinds.get(step.name) in (Kind.SPARSE, Kind.POINTWISE) for step in first.steps[:last]) < 2:
        return list(levels)
    halves = {name: (rows // workers, columns) for name, (rows, columns) in first.blocks.items()}
    banded = Level(first.grid, first.steps[:last], _touched(first.steps[:last], halves), workers)
    whole = Level(first.grid, first.steps[last:], _touched(first.steps[last:], first.blocks), gates=first.gates)
    return [level for level in (banded, whole, *rest) if level.steps]


def _touched(steps: Sequence[Step], blocks: Mapping[str, Pair]) -> dict[str, Pair]:
    return {name: blocks[name] for step in steps for name in (*step.inputs, step.name)}


def _fits(shape: Shape, block: Pair, grid: Pair, workers: int) -> bool:
    """Whether blocks fill an image and have rows for every worker."""
    return block[0] % workers == 0 and all(g * b == side for g, b, side in zip(grid, block, shape[1:], strict=True))


def _divides(
    step: Step, level: Level, shapes: Mapping[str, Shape], lanes: int, workers: int, kinds: Mapping[str, Kind]
) -> bool:
    """Whether bands of a step give the same bits as the whole."""
    block = level.blocks[step.name]
    if not _fits(shapes[step.name], block, level.grid, workers):
        return False
    if not step.inputs or isinstance(step, FREE):
        return False
    band, before = (block[0] // workers, block[1]), level.blocks[step.inputs[0]][0] // workers
    if isinstance(step, Pool) and step.size is not None:
        return False
    match step:
        case Conv():
            near = max(reach(step, 0, before, band[0])) <= before
            tile = TILES[tile_for(band, lanes, step.stride)]
            kind = kinds[step.name]
            sparse = kind is Kind.SPARSE and prod(tile) >= LEAST_TILE
            sparse |= kind is Kind.POINTWISE and prod(band) >= LEAST_TILE
            return near and (sparse or (kind is Kind.WINOGRAD and band[0] % ROWS == 0))
        case Pool():
            return max(reach(step, 0, before, band[0])) <= before
    return isinstance(step, (Affine, Activation)) or (isinstance(step, Add) and not step.gated)
