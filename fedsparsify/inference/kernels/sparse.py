"""Convolutions over the weights that are left, along the streams that lowering/weight_streams.py packs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.compiled import compiled, inlined
from ...native.pointers import floats
from .pixel_lane_simd import pixel_lane_channel
from .small_simd import small_tile
from .sparse_simd import sparse_tile
from .tiles import TILE_1X2, TILE_1X4, TILE_2X2, TILE_2X4, TILE_4X4
from .winograd import pool_affine

ONE, TWO, FOUR = (0,), (0,) * 2, (0,) * 4


@inlined
def sparse(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A convolution over the weights that are left."""
    tile, strided = op.tile, op.stride_column != len(width)
    if strided and tile == TILE_2X4:
        _sparse_tiles(width, TWO, FOUR, TWO, op, arena, stream, params)
    elif strided:
        _sparse_tiles(width, ONE, ONE, TWO, op, arena, stream, params)
    elif tile == TILE_4X4:
        _sparse_tiles(width, FOUR, FOUR, ONE, op, arena, stream, params)
    elif tile == TILE_2X4:
        _sparse_tiles(width, TWO, FOUR, ONE, op, arena, stream, params)
    elif tile == TILE_2X2:
        _sparse_tiles(width, TWO, TWO, ONE, op, arena, stream, params)
    elif tile == TILE_1X4:
        _sparse_tiles(width, ONE, FOUR, ONE, op, arena, stream, params)
    elif tile == TILE_1X2:
        _sparse_tiles(width, ONE, TWO, ONE, op, arena, stream, params)
    else:
        _sparse_tiles(width, ONE, ONE, ONE, op, arena, stream, params)


@compiled
def _sparse_tiles(
    width: Any, rows: Any, columns: Any, strided: Any, op: Any, arena: Any, stream: Any, params: Any
) -> None:
    """Tile by tile, a few input channels at a time so that they stay in the nearest cache.

    The last tile of a row or column overlaps the one before where the block is no multiple of it.
    """
    height, breadth, lanes = len(rows), len(columns), len(width)
    bias, side = floats(params + 4 * op.params), 1 + op.pooled
    for i in range(0, op.rows, height):
        i = min(i, op.rows - height)
        for j in range(0, op.columns, breadth):
            j = min(j, op.columns - breadth)
            x = arena + 4 * (op.source + i * op.stride_row + j * op.stride_column)
            at = stream + 4 * op.stream
            for block in range(op.input_blocks):
                out = arena + 4 * (op.target + i // side * op.target_row + j // side * lanes)
                partial = arena + 4 * op.workspace
                for o in range(op.channels):
                    a, b = pool_affine(op, params, o)
                    at = sparse_tile(
                        width,
                        rows,
                        columns,
                        strided,
                        x,
                        4 * op.stride_row,
                        4 * op.stride_column,
                        at,
                        partial,
                        int(block == 0),
                        int(block == op.input_blocks - 1) * (side + 2 * op.hardswish),
                        bias[o],
                        out,
                        4 * op.target_row,
                        op.low,
                        op.high,
                        a,
                        b,
                    )
                    out += 4 * op.target_channel
                    partial += 4 * height * breadth * lanes


@compiled
def linear(op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A linear layer of one image, whose inputs, side by side, fit the nearest cache; a vector would be mostly idle."""
    x, out, at = arena + 4 * op.workspace, arena + 4 * op.target, stream + 4 * op.stream
    source, near, bias = floats(arena + 4 * op.source), floats(x), floats(params + 4 * op.params)
    for c in range(op.depth):
        near[c] = source[c * op.source_channel]
    once, nothing = np.float32(1), np.float32(0)  # no pool follows
    for o in range(op.channels):
        at = sparse_tile(ONE, ONE, ONE, ONE, x, 0, 4, at, x, 1, 1, bias[o], out, 0, op.low, op.high, once, nothing)
        out += 4 * op.target_channel


@compiled
def pixel_lane(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A convolution of one image that has one pixel per lane."""
    out, at, bias = arena + 4 * op.target, stream + 4 * op.stream, floats(params + 4 * op.params)
    for o in range(op.channels):
        at = pixel_lane_channel(width, arena + 4 * op.source, at, bias[o], out, op.low, op.high)
        out += 4 * op.target_channel


@inlined
def small(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A 3 × 3 convolution of small images that lie whole in their lanes."""
    if op.rows == 4:
        _small_tiles(width, FOUR, FOUR, op, arena, stream, params)
    else:
        _small_tiles(width, TWO, TWO, op, arena, stream, params)


@compiled
def _small_tiles(width: Any, rows: Any, columns: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    vectors, bias, at = (
        4 * len(rows) * len(columns) * len(width),
        floats(params + 4 * op.params),
        stream + 4 * op.stream,
    )
    for block in range(op.input_blocks):
        out, partial = arena + 4 * op.target, arena + 4 * op.workspace
        for o in range(op.channels):
            a, b = pool_affine(op, params, o)
            at = small_tile(
                width,
                rows,
                columns,
                arena + 4 * op.source,
                4 * op.source_row,
                at,
                partial,
                int(block == 0),
                int(block == op.input_blocks - 1) * (1 + op.pooled),
                bias[o],
                out,
                4 * op.target_row,
                op.low,
                op.high,
                a,
                b,
            )
            out += 4 * op.target_channel
            partial += vectors
