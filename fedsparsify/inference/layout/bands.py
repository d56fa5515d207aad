"""Which layers of an image that workers share are divided by rows.

Workers that divide the channels read half of their inputs from another core's cache, halos and all. Where each takes
a band of the image's rows, only the rows along the seams cross over. Bands want many rows, so that this is for the
first layers. It ends behind a pool, or another step that makes the image smaller, where least is left to be moved. Of
a dense layer each worker reads all weights then, which are many, so that it takes two sparse ones to pay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from ...graph import INPUT
from ..frontend.fusion import Shape
from ..frontend.steps import Activation, Add, Affine, Conv, Pair, Pool, Step
from ..kernels.winograd_numbers import ROWS
from ..lowering.layers import Recipe
from ..lowering.packing import tile_for
from ..lowering.rows import TILES, Kind
from .storage import Level, Place, reach

LEAST_TILE = 8  # vectors of a tile under which the sparse kernel adds in another order, and is slower


def in_bands(
    levels: Sequence[Level], shapes: Mapping[str, Shape], lanes: int, workers: int, recipes: Mapping[str, Recipe]
) -> list[Level]:
    """The levels, of which the first begins with as many steps in bands as pays; bits stay what they were."""
    first, *rest = levels
    last = 0
    if first.grid != (1, 1) and _fits(shapes[INPUT], first.blocks.get(INPUT, (1, 1)), first.grid, workers):
        for count, step in enumerate(first.steps):
            output = not rest and step is first.steps[-1]
            if output or not _divides(step, first, shapes, lanes, workers, recipes):
                break
            if first.blocks[step.name] < first.blocks[step.inputs[0]]:
                last = count + 1
    if sum(step.name in recipes and recipes[step.name].kind is Kind.SPARSE for step in first.steps[:last]) < 2:
        return list(levels)
    halves = {name: (rows // workers, columns) for name, (rows, columns) in first.blocks.items()}
    banded = Level(first.grid, first.steps[:last], _touched(first.steps[:last], halves), workers)
    whole = Level(first.grid, first.steps[last:], _touched(first.steps[last:], first.blocks))
    return [level for level in (banded, whole, *rest) if level.steps]


def _touched(steps: Sequence[Step], blocks: Mapping[str, Pair]) -> dict[str, Pair]:
    return {name: blocks[name] for step in steps for name in (*step.inputs, step.name)}


def _fits(shape: Shape, block: Pair, grid: Pair, workers: int) -> bool:
    """Whether blocks fill an image and have rows for every worker."""
    return block[0] % workers == 0 and all(g * b == side for g, b, side in zip(grid, block, shape[1:], strict=True))


def _divides(
    step: Step, level: Level, shapes: Mapping[str, Shape], lanes: int, workers: int, recipes: Mapping[str, Recipe]
) -> bool:
    """Whether each worker can make its rows of a step with the sums of the whole."""
    block = level.blocks[step.name]
    if not _fits(shapes[step.name], block, level.grid, workers):
        return False
    band, before = (block[0] // workers, block[1]), level.blocks[step.inputs[0]][0] // workers
    match step:
        case Conv():
            near = max(reach(step, 0, before, band[0])) <= before
            tile = TILES[tile_for(band, lanes, step.stride)]
            kind = recipes[step.name].kind
            sparse = kind is Kind.SPARSE and prod(tile) >= LEAST_TILE
            return near and (sparse or (kind is Kind.WINOGRAD and band[0] % ROWS == 0))
        case Pool():
            return max(reach(step, 0, before, band[0])) <= before
    return isinstance(step, (Add, Affine, Activation))


def seams(place: Place, worker: int, workers: int) -> list[tuple[dict[str, Any], list[bool]]]:
    """Rows that fetch what borders on a worker's band from the bands above and below it, and which lanes take it."""
    across, edge = place.grid[1], place.lanes - place.grid[1]
    start = place.origin - place.before[1] * place.lanes
    fields = {"source_channel": place.channel, "target_channel": place.channel, "channels": place.shape[0]}
    fields |= {"source_row": place.row, "target_row": place.row, "columns": place.row // place.lanes}
    made = []
    if place.before[0] and worker > 0:
        source = start + (worker - 1) * place.apart + (place.block[0] - place.before[0]) * place.row + edge
        ends = {"source": source, "target": start + worker * place.apart - place.before[0] * place.row}
        made.append(({**fields, **ends, "rows": place.before[0]}, [lane < across for lane in range(place.lanes)]))
    if place.after[0] and worker < workers - 1:
        source = start + (worker + 1) * place.apart - edge
        ends = {"source": source, "target": start + worker * place.apart + place.block[0] * place.row}
        made.append(({**fields, **ends, "rows": place.after[0]}, [lane >= edge for lane in range(place.lanes)]))
    return made
