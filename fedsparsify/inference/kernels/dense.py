"""Convolutions over all weights, for layers that kept most of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.compiled import compiled, inlined
from ...native.memory import floats
from ..lowering.rows import PLANE_GAP
from .dense_simd import dense_tile
from .winograd_numbers import ROWS
from .winograd_simd import winograd_in, winograd_out

ONE, TWO, FOUR, EIGHT, SIXTEEN = (0,), (0,) * 2, (0,) * 4, (0,) * 8, (0,) * 16


@inlined
def behind(op: Any, params: Any, channel: Any) -> Any:
    """By what a pool that the convolution does too scales and shifts a channel; its factors lie behind the bias."""
    if op.flag == 0:
        return np.float32(1), np.float32(0)
    factors = floats(params + 4 * (op.params + op.channels))
    return factors[channel], factors[op.channels + channel]


@inlined
def dense(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Sixteen output channels by one vector, or eight by two, at a time."""
    if op.tile == 1:
        _dense(width, SIXTEEN, ONE, op, arena, params, indices)
    else:
        _dense(width, EIGHT, TWO, op, arena, params, indices)


@compiled
def _dense(width: Any, outputs: Any, vectors: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    offsets, many = indices + 4 * op.table, len(outputs)
    for i in range(op.rows):
        for j in range(0, op.columns, len(vectors)):
            x = arena + 4 * (op.source + i * op.stride_row + j * op.stride_column)
            out = arena + 4 * (op.target + i * op.target_row + j * len(width))
            bias = params + 4 * op.params
            weights = bias + 4 * op.blocks * many
            for _ in range(op.blocks):
                step = 4 * op.stride_column
                dense_tile(
                    width,
                    outputs,
                    vectors,
                    x,
                    step,
                    offsets,
                    weights,
                    op.count,
                    bias,
                    out,
                    4 * op.target_channel,
                    op.low,
                    op.high,
                )
                weights += 4 * op.count * many
                bias += 4 * many
                out += 4 * many * op.target_channel


@inlined
def winograd(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Tiles of four rows and four or eight columns; the last ones overlap where the block is no multiple."""
    if op.tile == 4:
        _winograd(width, FOUR, op, arena, params, indices)
    else:
        _winograd(width, EIGHT, op, arena, params, indices)


@compiled
def _winograd(width: Any, columns: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    lanes, breadth = len(width), len(columns)
    offsets, planes = indices + 4 * op.table, (ROWS + 2) * (breadth + 2)
    vector, many = 4 * lanes, len(SIXTEEN)
    wide, step = op.depth * vector + PLANE_GAP, op.blocks * many * vector + PLANE_GAP  # from frequency to frequency
    inputs = arena + 4 * op.second  # (frequencies, depth, lanes)
    sums = inputs + planes * wide  # (frequencies, channels, lanes)
    bias = floats(params + 4 * op.params)
    table = params + 4 * (op.params + op.channels * (1 + 2 * op.flag))
    weights = table + 4 * op.count
    none, endless = np.float32(-np.inf), np.float32(np.inf)
    for i in range(0, op.rows, ROWS):
        i = min(i, op.rows - ROWS)
        for j in range(0, op.columns, breadth):
            j = min(j, op.columns - breadth)
            x = arena + 4 * (op.source + op.corner + i * op.source_row + j * lanes)
            for c in range(op.depth):
                corner = x + 4 * c * op.source_channel
                winograd_in(width, columns, corner, 4 * op.source_row, inputs + c * vector, wide, table)
            at = weights
            for f in range(planes):
                x = inputs + f * wide
                out = sums + f * step
                for _ in range(op.blocks):
                    dense_tile(width, SIXTEEN, ONE, x, vector, offsets, at, op.depth, 0, out, vector, none, endless)
                    at += 4 * op.depth * many
                    out += many * vector
            side = 1 + op.flag
            out, row = arena + 4 * (op.target + i // side * op.target_row + j // side * lanes), 4 * op.target_row
            for o in range(op.channels):
                total, place = sums + o * vector, out + 4 * o * op.target_channel
                a, b = behind(op, params, o)
                if op.flag:
                    winograd_out(width, columns, TWO, total, step, bias[o], place, row, op.low, op.high, table, a, b)
                else:
                    winograd_out(width, columns, ONE, total, step, bias[o], place, row, op.low, op.high, table, a, b)
