"""The operations, compiled for one width of vectors each and general in every shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .compiled import compiled
from .operations import Kind
from .simd import read_int, sparse_tile

ONE, TWO, FOUR = (0,), (0,) * 2, (0,) * 4
(PACK, UNPACK, MOVE, HALO, SPARSE, DENSE, WINOGRAD, POOL, AFFINE, ADD, CURVE, SOFTMAX) = (int(kind) for kind in Kind)


@compiled
def execute(
    width: Any, table: Any, arena: Any, stream: Any, params: Any, indices: Any, x: Any, y: Any, images: Any
) -> None:
    """Run a program over one block of `images` images."""
    for k in range(len(table)):
        op = table[k]
        left = images - op.image
        if left <= 0:
            continue
        kind = op.kind
        if kind == SPARSE:
            _sparse(width, op, arena, stream, params)
        elif kind == HALO:
            _halo(width, op, arena, indices)
        elif kind == PACK:
            _move(op, x, op.source + op.image * op.second, arena, op.target, indices, left)
        elif kind == UNPACK:
            _move(op, arena, op.source, y, op.target + op.image * op.second, indices, left)
        elif kind == MOVE:
            _move(op, arena, op.source, arena, op.target, indices, left)
        elif kind == POOL:
            _pool(width, op, arena, params, indices)
        elif kind == AFFINE:
            _affine(width, op, arena, params)
        elif kind == ADD:
            _add(width, op, arena)
        elif kind == CURVE:
            _curve(width, op, arena)
        elif kind == SOFTMAX:
            _softmax(width, op, arena)


@compiled
def _move(op: Any, source: Any, start: Any, target: Any, end: Any, indices: Any, images: Any) -> None:
    """Copy scattered floats, channel by channel: pairs (from, to) of each image that is there."""
    count = min(op.count, images * op.per_image)
    for c in range(op.channels):
        a, b = start + c * op.source_channel, end + c * op.target_channel
        for e in range(count):
            target[b + indices[op.table + op.count + e]] = source[a + indices[op.table + e]]


@compiled
def _sparse(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """A convolution over the weights that are left."""
    tile = op.tile
    if tile == 0:
        _sparse_tiles(width, FOUR, FOUR, op, arena, stream, params)
    elif tile == 1:
        _sparse_tiles(width, TWO, FOUR, op, arena, stream, params)
    elif tile == 2:
        _sparse_tiles(width, TWO, TWO, op, arena, stream, params)
    elif tile == 3:
        _sparse_tiles(width, ONE, FOUR, op, arena, stream, params)
    elif tile == 4:
        _sparse_tiles(width, ONE, TWO, op, arena, stream, params)
    else:
        _sparse_tiles(width, ONE, ONE, op, arena, stream, params)


@compiled
def _sparse_tiles(width: Any, rows: Any, columns: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """Tile by tile, a few input channels at a time so that they stay in the nearest cache.

    The last tile of a row or column overlaps the one before where the block is no multiple of it.
    """
    height, breadth, lanes = len(rows), len(columns), len(width)
    base = arena.ctypes.data
    for i in range(0, op.rows, height):
        i = min(i, op.rows - height)
        for j in range(0, op.columns, breadth):
            j = min(j, op.columns - breadth)
            x = base + 4 * (op.source + i * op.stride_row + j * op.stride_column)
            at = stream.ctypes.data + 4 * op.stream
            for block in range(op.blocks):
                out = base + 4 * (op.target + i * op.target_row + j * lanes)
                partial = base + 4 * op.second
                for o in range(op.channels):
                    at = sparse_tile(
                        width,
                        rows,
                        columns,
                        x,
                        4 * op.stride_row,
                        4 * op.stride_column,
                        at + 4,
                        read_int(at),
                        partial,
                        int(block == 0),
                        int(block == op.blocks - 1),
                        params[op.params + o],
                        out,
                        4 * op.target_row,
                        op.low,
                        op.high,
                    )
                    out += 4 * op.target_channel
                    partial += 4 * height * breadth * lanes


@compiled
def _halo(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Write the fill outside of the image, then hand border pixels from lane to lane: columns, then rows.

    The table holds above, left, below, right; the grid's rows and columns; then the cells to fill.
    """
    lanes, t = len(width), op.table
    above, left, below, right = indices[t], indices[t + 1], indices[t + 2], indices[t + 3]
    gy, gx = indices[t + 4], indices[t + 5]
    for c in range(op.channels):
        start = op.target + c * op.target_channel
        for e in range(op.count):
            arena[start + indices[t + 6 + e]] = op.low
        for i in range(op.rows):
            row = start + i * op.target_row
            for j in range(left):
                _shift(width, arena, row - (j + 1) * lanes, row + (op.columns - 1 - j) * lanes, 1, 1, gx, 0, op.low)
            for j in range(right):
                _shift(width, arena, row + (op.columns + j) * lanes, row + j * lanes, -1, 1, gx, gx - 1, op.low)
        for j in range(-left, op.columns + right):
            column = start + j * lanes
            for i in range(above):
                a, b = column - (i + 1) * op.target_row, column + (op.rows - 1 - i) * op.target_row
                _shift(width, arena, a, b, gx, gx, gy, 0, op.low)
            for i in range(below):
                a, b = column + (op.rows + i) * op.target_row, column + i * op.target_row
                _shift(width, arena, a, b, -gx, gx, gy, gy - 1, op.low)


@compiled
def _shift(
    width: Any, arena: Any, target: Any, source: Any, by: Any, unit: Any, blocks: Any, border: Any, fill: Any
) -> None:
    """A vector moved by some lanes; blocks at the image's border get the fill."""
    for lane in range(len(width)):
        value = arena[source + lane - by]
        arena[target + lane] = fill if lane // unit % blocks == border else value


@compiled
def _pool(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Windows given as (first, behind last) row and column; mean values take a factor per output."""
    lanes = len(width)
    t, q = op.table, op.table + 2 * op.rows
    scale, shift = op.params, op.params + op.channels
    factors = shift + op.channels
    for c in range(op.channels):
        source, target = op.source + c * op.source_channel, op.target + c * op.target_channel
        a, b = params[scale + c], params[shift + c]
        for i in range(op.rows):
            for j in range(op.columns):
                out = target + i * op.target_row + j * lanes
                for lane in range(lanes):
                    arena[out + lane] = np.float32(0) if op.flag else np.float32(-np.inf)
                for r in range(indices[t + 2 * i], indices[t + 2 * i + 1]):
                    for s in range(indices[q + 2 * j], indices[q + 2 * j + 1]):
                        cell = source + r * op.source_row + s * lanes
                        if op.flag:
                            for lane in range(lanes):
                                arena[out + lane] += arena[cell + lane]
                        else:
                            for lane in range(lanes):
                                arena[out + lane] = max(arena[out + lane], arena[cell + lane])
                factor = a * params[factors + i * op.columns + j]
                for lane in range(lanes):
                    arena[out + lane] = min(max(arena[out + lane] * factor + b, op.low), op.high)


@compiled
def _affine(width: Any, op: Any, arena: Any, params: Any) -> None:
    for c in range(op.channels):
        a, b = params[op.params + c], params[op.params + op.channels + c]
        for i in range(op.rows):
            source = op.source + c * op.source_channel + i * op.source_row
            target = op.target + c * op.target_channel + i * op.target_row
            for lane in range(op.columns * len(width)):
                arena[target + lane] = min(max(arena[source + lane] * a + b, op.low), op.high)


@compiled
def _add(width: Any, op: Any, arena: Any) -> None:
    for c in range(op.channels):
        for i in range(op.rows):
            source = op.source + c * op.source_channel + i * op.source_row
            second = op.second + c * op.second_channel + i * op.second_row
            target = op.target + c * op.target_channel + i * op.target_row
            for lane in range(op.columns * len(width)):
                arena[target + lane] = min(max(arena[source + lane] + arena[second + lane], op.low), op.high)


@compiled
def _curve(width: Any, op: Any, arena: Any) -> None:
    for c in range(op.channels):
        for i in range(op.rows):
            source = op.source + c * op.source_channel + i * op.source_row
            target = op.target + c * op.target_channel + i * op.target_row
            for lane in range(op.columns * len(width)):
                arena[target + lane] = _bend(op.flag, arena[source + lane], op.low)


@compiled
def _bend(kind: Any, x: Any, slope: Any) -> Any:
    """One value of the curve that steps.CURVES numbers."""
    one = np.float32(1)
    if kind == 0:
        return x if x > 0 else slope * x
    if kind == 1:
        return one / (one + math.exp(-x))
    if kind == 2:
        return math.tanh(x)
    if kind == 3:
        return x / (one + math.exp(-x))
    if kind == 4:
        return x * min(max(x + np.float32(3), np.float32(0)), np.float32(6)) / np.float32(6)
    return x * np.float32(0.5) * (one + math.erf(x * np.float32(0.7071067811865476)))


@compiled
def _softmax(width: Any, op: Any, arena: Any) -> None:
    for i in range(op.rows):
        for j in range(op.columns * len(width)):
            source, target = op.source + i * op.source_row + j, op.target + i * op.target_row + j
            top, total = np.float32(-np.inf), np.float32(0)
            for c in range(op.channels):
                top = max(top, arena[source + c * op.source_channel])
            for c in range(op.channels):
                share = np.float32(math.exp(arena[source + c * op.source_channel] - top))
                arena[target + c * op.target_channel] = share
                total += share
            for c in range(op.channels):
                arena[target + c * op.target_channel] /= total
