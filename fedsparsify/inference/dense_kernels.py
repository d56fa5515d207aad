"""Convolutions over all weights, for layers that kept most of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..native.compiled import compiled, inlined
from ..native.memory import floats
from .dense_simd import dense_tile, winograd_in, winograd_out
from .operations import FREQUENCIES, PLANE_GAP

ONE, TWO, EIGHT, SIXTEEN = (0,), (0,) * 2, (0,) * 8, (0,) * 16


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
    """One or two tiles of 4 × 4 outputs at a time; the last ones overlap where the block is no multiple."""
    if op.tile == 1:
        _winograd(width, SIXTEEN, ONE, op, arena, params, indices)
    else:
        _winograd(width, EIGHT, TWO, op, arena, params, indices)


@compiled
def _winograd(width: Any, outputs: Any, vectors: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    lanes, many, across = len(width), len(outputs), len(vectors)
    offsets = indices + 4 * op.table
    vector = 4 * lanes * across
    wide, step = op.depth * vector + PLANE_GAP, op.blocks * many * vector + PLANE_GAP  # from frequency to frequency
    inputs = arena + 4 * op.second  # (frequencies, depth, tiles, lanes)
    sums = inputs + FREQUENCIES * wide  # (frequencies, channels, tiles, lanes)
    bias = floats(params + 4 * op.params)
    weights = params + 4 * (op.params + op.channels)
    none, endless = np.float32(-np.inf), np.float32(np.inf)
    for i in range(0, op.rows, 4):
        i = min(i, op.rows - 4)
        for j in range(0, op.columns, 4 * across):
            j = min(j, op.columns - 4 * across)
            for c in range(op.depth):
                for t in range(across):
                    x = arena + 4 * (
                        op.source + op.corner + c * op.source_channel + i * op.source_row + (j + 4 * t) * lanes
                    )
                    place = inputs + c * vector + 4 * t * lanes
                    winograd_in(width, x, 4 * op.source_row, place, wide)
            at = weights
            for f in range(FREQUENCIES):
                x = inputs + f * wide
                out = sums + f * step
                for _ in range(op.blocks):
                    dense_tile(
                        width, outputs, vectors, x, 4 * lanes, offsets, at, op.depth, 0, out, vector, none, endless
                    )
                    at += 4 * op.depth * many
                    out += many * vector
            for o in range(op.channels):
                for t in range(across):
                    out = arena + 4 * (op.target + o * op.target_channel + i * op.target_row + (j + 4 * t) * lanes)
                    place = sums + o * vector + 4 * t * lanes
                    winograd_out(width, place, step, bias[o], out, 4 * op.target_row, op.low, op.high)
