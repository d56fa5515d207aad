"""The operations, compiled for one width of vectors each and general in every shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .compiled import compiled
from .dense_kernels import dense, winograd
from .operations import Kind
from .simd import sparse_tile
from .vectors import (
    JOB,
    await_mail,
    copy_float,
    exchange,
    meet,
    pool_cell,
    pool_square,
    read_int,
    shift_lanes,
    transpose,
)

ONE, TWO, FOUR = (0,), (0,) * 2, (0,) * 4
(PACK, UNPACK, MOVE, HALO, SPARSE, DENSE, WINOGRAD, POOL, AFFINE, ADD, CURVE, SOFTMAX, TRANSPOSE, MEET) = (
    int(kind) for kind in Kind
)


@compiled
def execute(
    width: Any,
    table: Any,
    arena: Any,
    stream: Any,
    params: Any,
    indices: Any,
    x: Any,
    y: Any,
    images: Any,
    gate: Any,
    comings: Any,
) -> None:
    """Run a program over one block of `images` images at address x, into y; the gate has counted `comings` before."""
    base = arena.ctypes.data
    for k in range(len(table)):
        op = table[k]
        left = images - op.image
        if left <= 0:
            continue
        kind = op.kind
        if kind == SPARSE:
            _sparse(width, op, arena, stream, params)
        elif kind == DENSE:
            dense(width, op, arena, params, indices)
        elif kind == WINOGRAD:
            winograd(width, op, arena, params, indices)
        elif kind == HALO:
            _halo(width, op, arena, indices)
        elif kind == PACK:
            _move(op, x + 4 * op.source, base + 4 * op.target, indices, left)
        elif kind == TRANSPOSE:
            _transpose(width, op, x + 4 * op.source, base + 4 * op.target, left)
        elif kind == UNPACK:
            _move(op, base + 4 * op.source, y + 4 * op.target, indices, left)
        elif kind == MOVE:
            _move(op, base + 4 * op.source, base + 4 * op.target, indices, left)
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
        elif kind == MEET:
            meet(gate.ctypes.data, comings + op.count)


@compiled
def assist(width: Any, table: Any, arena: Any, stream: Any, params: Any, indices: Any, mail: Any, gate: Any) -> None:
    """Take jobs (input, output, comings) from a mailbox until none comes for a while."""
    while await_mail(mail.ctypes.data) == JOB:
        execute(width, table, arena, stream, params, indices, mail[1], mail[2], 1, gate, mail[3])


@compiled
def post(mail: Any, state: Any) -> Any:
    """Put a state into a mailbox; what it held."""
    return exchange(mail.ctypes.data, state)


@compiled
def _move(op: Any, source: Any, target: Any, indices: Any, images: Any) -> None:
    """Copy scattered floats, channel by channel: pairs (from, to) of each image that is there."""
    count = min(op.count, images * op.per_image)
    for c in range(op.channels):
        a, b = source + 4 * c * op.source_channel, target + 4 * c * op.target_channel
        at = indices.ctypes.data + 4 * op.table
        for _ in range(count):
            copy_float(b + 4 * read_int(at + 4), a + 4 * read_int(at))
            at += 8


@compiled
def _transpose(width: Any, op: Any, source: Any, target: Any, images: Any) -> None:
    """Rows of features into vectors of images."""
    lanes = len(width)
    for first in range(0, min(op.count, images), lanes):
        rows = min(lanes, images - first)
        whole = op.channels // lanes * lanes if rows == lanes else 0
        a, b = source + 4 * first * op.depth, target + 4 * first
        for c in range(0, whole, lanes):
            transpose(width, b + 4 * c * op.target_channel, 4 * op.target_channel, a + 4 * c, 4 * op.depth)
        for c in range(whole, op.channels):
            for row in range(rows):
                copy_float(b + 4 * (c * op.target_channel + row), a + 4 * (row * op.depth + c))


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
                        at,
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

    The table holds above, left, below, right; the grid's columns; a mask for each of the four; then the cells to fill.
    """
    lanes, t = len(width), op.table
    above, left, below, right, across = indices[t], indices[t + 1], indices[t + 2], indices[t + 3], indices[t + 4]
    vector, row_bytes, fill = 4 * lanes, 4 * op.target_row, op.low
    masks = indices.ctypes.data + 4 * (t + 5)
    for c in range(op.channels):
        start = op.target + c * op.target_channel
        for e in range(op.count):
            arena[start + indices[t + 5 + 4 * lanes + e]] = fill
        corner = arena.ctypes.data + 4 * start
        for i in range(op.rows):
            row = corner + i * row_bytes
            for j in range(left):
                shift_lanes(
                    width, row - (j + 1) * vector, row + (op.columns - 1 - j) * vector - 4, masks + vector, fill
                )
            for j in range(right):
                shift_lanes(width, row + (op.columns + j) * vector, row + j * vector + 4, masks + 3 * vector, fill)
        for j in range(-left, op.columns + right):
            column, by = corner + j * vector, 4 * across
            for i in range(above):
                lower = column + (op.rows - 1 - i) * row_bytes
                shift_lanes(width, column - (i + 1) * row_bytes, lower - by, masks, fill)
            for i in range(below):
                upper = column + i * row_bytes
                shift_lanes(width, column + (op.rows + i) * row_bytes, upper + by, masks + 2 * vector, fill)


@compiled
def _pool(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Windows given as (first, behind last) row and column; mean values take a factor per output."""
    t, q = op.table, op.table + 2 * op.rows
    scale, shift = op.params, op.params + op.channels
    factors = shift + op.channels
    vector, row_bytes = 4 * len(width), 4 * op.source_row
    for c in range(op.channels):
        source = arena.ctypes.data + 4 * (op.source + c * op.source_channel)
        target = arena.ctypes.data + 4 * (op.target + c * op.target_channel)
        a, b = params[scale + c], params[shift + c]
        for i in range(op.rows):
            r, height = indices[t + 2 * i], indices[t + 2 * i + 1] - indices[t + 2 * i]
            for j in range(op.columns):
                s, breadth = indices[q + 2 * j], indices[q + 2 * j + 1] - indices[q + 2 * j]
                cell = source + r * row_bytes + s * vector
                factor = a * params[factors + i * op.columns + j]
                out = target + 4 * i * op.target_row + j * vector
                if height == 2 and breadth == 2 and op.flag == 0:
                    pool_square(width, out, cell, row_bytes, factor, b, op.low, op.high)
                else:
                    pool_cell(width, out, cell, row_bytes, height, breadth, op.flag, factor, b, op.low, op.high)


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
