"""Integer convolutions over the weights that are left, along the streams that int8/streams.py packs.

Offsets of rows count 16-bit integers. A layer's numbers are 32-bit integers in `params`, channel by channel: bias, low,
high, then the factors and the shifts of the pool after it, where it is included.
"""

from __future__ import annotations

from typing import Any

from ....native.compiled import compiled, inlined
from ....native.pointers import ints
from ...kernels.tiles import TILE_1X2, TILE_1X4, TILE_2X2, TILE_2X4, TILE_4X4
from .tiles import int_small_tile, int_tile

ONE, TWO, FOUR = (0,), (0,) * 2, (0,) * 4
ELEMENT = 2  # bytes


@inlined
def sparse(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A convolution over the weights that are left."""
    tile, strided = op.tile, op.stride_column != len(width)
    if strided and tile == TILE_2X4:
        _tiles(width, TWO, FOUR, TWO, op, arena, stream, params)
    elif strided:
        _tiles(width, ONE, ONE, TWO, op, arena, stream, params)
    elif tile == TILE_4X4:
        _tiles(width, FOUR, FOUR, ONE, op, arena, stream, params)
    elif tile == TILE_2X4:
        _tiles(width, TWO, FOUR, ONE, op, arena, stream, params)
    elif tile == TILE_2X2:
        _tiles(width, TWO, TWO, ONE, op, arena, stream, params)
    elif tile == TILE_1X4:
        _tiles(width, ONE, FOUR, ONE, op, arena, stream, params)
    elif tile == TILE_1X2:
        _tiles(width, ONE, TWO, ONE, op, arena, stream, params)
    else:
        _tiles(width, ONE, ONE, ONE, op, arena, stream, params)


@compiled
def _tiles(width: Any, rows: Any, columns: Any, strided: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """Tile by tile, a few input channels at a time; the last tiles overlap where the block is no multiple."""
    height, breadth, lanes = len(rows), len(columns), len(width)
    numbers, many, side = ints(params + 4 * op.params), op.channels, 1 + op.pooled
    for i in range(0, op.rows, height):
        i = min(i, op.rows - height)
        for j in range(0, op.columns, breadth):
            j = min(j, op.columns - breadth)
            x = arena + ELEMENT * (op.source + i * op.stride_row + j * op.stride_column)
            at = stream + 4 * op.stream
            for block in range(op.input_blocks):
                out = arena + ELEMENT * (op.target + i // side * op.target_row + j // side * lanes)
                partial = arena + ELEMENT * op.workspace
                for o in range(many):
                    at = int_tile(
                        width,
                        rows,
                        columns,
                        strided,
                        x,
                        ELEMENT * op.stride_row,
                        ELEMENT * op.stride_column,
                        at,
                        partial,
                        int(block == 0),
                        int(block == op.input_blocks - 1) * side,
                        int(numbers[o]),
                        out,
                        ELEMENT * op.target_row,
                        int(numbers[many + o]),
                        int(numbers[2 * many + o]),
                        int(numbers[3 * many + o]),
                        int(numbers[4 * many + o]),
                    )
                    out += ELEMENT * op.target_channel
                    partial += ELEMENT * height * breadth * lanes


@inlined
def small(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A 3 × 3 convolution of small images that lie whole in their lanes."""
    if op.rows == 4:
        _small(width, FOUR, FOUR, op, arena, stream, params)
    else:
        _small(width, TWO, TWO, op, arena, stream, params)


@compiled
def _small(width: Any, rows: Any, columns: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    vectors, at = ELEMENT * len(rows) * len(columns) * len(width), stream + 4 * op.stream
    numbers, many = ints(params + 4 * op.params), op.channels
    for block in range(op.input_blocks):
        out, partial = arena + ELEMENT * op.target, arena + ELEMENT * op.workspace
        for o in range(many):
            at = int_small_tile(
                width,
                rows,
                columns,
                arena + ELEMENT * op.source,
                ELEMENT * op.source_row,
                at,
                partial,
                int(block == 0),
                int(block == op.input_blocks - 1) * (1 + op.pooled),
                int(numbers[o]),
                out,
                ELEMENT * op.target_row,
                int(numbers[many + o]),
                int(numbers[2 * many + o]),
                int(numbers[3 * many + o]),
                int(numbers[4 * many + o]),
            )
            out += ELEMENT * op.target_channel
            partial += vectors
