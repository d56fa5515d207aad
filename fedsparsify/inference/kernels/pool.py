"""Pools: the largest or the mean value of windows, per channel."""

from __future__ import annotations

from typing import Any

from ...native.compiled import compiled
from ...native.pointers import floats, ints
from .vectors import pool_cell, pool_squares


@compiled
def pool(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Windows given as (first, last + 1) row and column, or 2 × 2 side by side; means take a factor per output."""
    rows, columns = ints(indices + 4 * op.windows), ints(indices + 4 * (op.windows + 2 * op.rows))
    scale, shift = floats(params + 4 * op.params), floats(params + 4 * (op.params + op.channels))
    factors = floats(params + 4 * (op.params + 2 * op.channels))
    vector, row_bytes = 4 * len(width), 4 * op.source_row
    for c in range(op.channels):
        source = arena + 4 * (op.source + c * op.source_channel)
        target = arena + 4 * (op.target + c * op.target_channel)
        a, b = scale[c], shift[c]
        if op.squares == 1:
            for i in range(op.rows):
                line, out = source + 2 * i * row_bytes, target + 4 * i * op.target_row
                pool_squares(width, out, line, row_bytes, op.columns, a, b, op.low, op.high)
            continue
        for i in range(op.rows):
            r, height = rows[2 * i], rows[2 * i + 1] - rows[2 * i]
            for j in range(op.columns):
                s, breadth = columns[2 * j], columns[2 * j + 1] - columns[2 * j]
                cell = source + r * row_bytes + s * vector
                factor = a * factors[i * op.columns + j]
                out = target + 4 * i * op.target_row + j * vector
                pool_cell(width, out, cell, row_bytes, height, breadth, op.mean, factor, b, op.low, op.high)
