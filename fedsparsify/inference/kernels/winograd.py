"""3 × 3 convolutions over all weights, by Winograd's transforms (see winograd_numbers.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.compiled import compiled, inlined
from ...native.pointers import floats
from .dense_simd import dense_tile
from .program_table import PLANE_GAP
from .winograd_numbers import ROWS
from .winograd_simd import winograd_in, winograd_out

ONE, TWO, FOUR, EIGHT, SIXTEEN = (0,), (0,) * 2, (0,) * 4, (0,) * 8, (0,) * 16


@inlined
def pool_affine(op: Any, params: Any, channel: Any) -> Any:
    """Scale and shift of a channel of the pool that the convolution includes; they lie after the bias."""
    if op.pooled == 0:
        return np.float32(1), np.float32(0)
    factors = floats(params + 4 * (op.params + op.channels))
    return factors[channel], factors[op.channels + channel]


@inlined
def winograd(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Tiles of four rows and four or eight columns; the last ones overlap where the block is no multiple."""
    if op.tile_columns == 4:
        _winograd(width, FOUR, op, arena, params, indices)
    else:
        _winograd(width, EIGHT, op, arena, params, indices)


@compiled
def _winograd(width: Any, columns: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    lanes, breadth = len(width), len(columns)
    offsets, planes = indices + 4 * op.offsets, (ROWS + 2) * (breadth + 2)
    vector, many = 4 * lanes, len(SIXTEEN)
    wide, step = (
        op.depth * vector + PLANE_GAP,
        op.output_blocks * many * vector + PLANE_GAP,
    )  # from frequency to frequency
    inputs = arena + 4 * op.workspace  # (frequencies, depth, lanes)
    sums = inputs + planes * wide  # (frequencies, channels, lanes)
    bias = floats(params + 4 * op.params)
    table = params + 4 * (op.params + op.channels * (1 + 2 * op.pooled))
    weights = table + 4 * op.factor_count
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
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
                for _ in range(op.output_blocks):
                    dense_tile(width, SIXTEEN, ONE, x, vector, offsets, at, op.depth, 0, out, vector, lowest, highest)
                    at += 4 * op.depth * many
                    out += many * vector
            side = 1 + op.pooled
            out, row = arena + 4 * (op.target + i // side * op.target_row + j // side * lanes), 4 * op.target_row
            for o in range(op.channels):
                total, address = sums + o * vector, out + 4 * o * op.target_channel
                a, b = pool_affine(op, params, o)
                if op.pooled:
                    winograd_out(width, columns, TWO, total, step, bias[o], address, row, op.low, op.high, table, a, b)
                else:
                    winograd_out(width, columns, ONE, total, step, bias[o], address, row, op.low, op.high, table, a, b)
