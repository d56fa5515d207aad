"""Products of matrices that both depend on the input, as attention has them.

Both are copied from wherever they lie into working memory, multiplied by the dense kernel's tiles, and the result is
copied to its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.compiled import compiled
from ...native.pointers import floats, ints
from .dense_simd import dense_tile
from .program_table import MATMUL_ROWS, MATMUL_VECTORS

f32 = np.float32
EIGHT, TWO = (0,) * MATMUL_ROWS, (0,) * MATMUL_VECTORS


@compiled
def matmul(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Matrix after matrix; a table has the offsets of each operand by row and by column (see lowering/free_rows.py)."""
    lanes, height, breadth, depth, count = len(width), op.rows, op.columns, op.depth, op.channels
    across = -(-breadth // (2 * lanes)) * (2 * lanes)
    down = -(-height // 8) * 8
    table = ints(indices + 4 * op.offsets)
    first_turned, second_turned = table[0], table[1]
    at = indices + 4 * (op.offsets + 2)
    first_rows, first_columns = (depth, height) if first_turned != 0 else (height, depth)
    second_rows, second_columns = (breadth, depth) if second_turned != 0 else (depth, breadth)
    a_rows = at
    a_columns = a_rows + 4 * count * first_rows
    b_rows = a_columns + 4 * first_columns
    b_columns = b_rows + 4 * count * second_rows
    c_rows = b_columns + 4 * second_columns
    c_columns = c_rows + 4 * count * height
    steps = c_columns + 4 * breadth
    right = arena + 4 * op.scratch  # (depth, across): first, as vectors are aligned
    made = right + 4 * depth * across  # (down, across)
    left = made + 4 * down * across  # (down / 8, depth, 8)
    for matrix in range(count):
        _pack_left(op, arena, left, a_rows + 4 * matrix * first_rows, a_columns, first_turned, height, down, depth)
        _pack_right(
            arena + 4 * op.second, right, b_rows + 4 * matrix * second_rows, b_columns, second_turned, depth, breadth,
            across,
        )  # fmt: skip
        for i in range(0, down, 8):
            for j in range(0, across, 2 * lanes):
                dense_tile(
                    width, EIGHT, TWO, right + 4 * j, 4 * lanes, steps, left + 4 * i * depth, depth, 0,
                    made + 4 * (i * across + j), 4 * across, f32(-np.inf), f32(np.inf),
                )  # fmt: skip
        _unpack(arena + 4 * op.target, made, c_rows + 4 * matrix * height, c_columns, height, breadth, across)


@compiled
def _pack_left(
    op: Any, arena: Any, packed: Any, by_row: Any, by_column: Any, turned: Any, height: Any, down: Any, depth: Any
) -> None:
    """Eight rows side by side, times the factor; channel by channel, as pixels of a channel lie close together."""
    source, made, rows, columns = floats(arena + 4 * op.source), floats(packed), ints(by_row), ints(by_column)
    factor = op.slope
    if turned == 0:
        for k in range(depth):
            channel = columns[k]
            for i in range(height):
                made[(i // 8) * 8 * depth + 8 * k + i % 8] = source[rows[i] + channel] * factor
    else:
        for i in range(height):
            channel, block = columns[i], (i // 8) * 8 * depth + i % 8
            for k in range(depth):
                made[block + 8 * k] = source[rows[k] + channel] * factor
    for i in range(height, down):
        for k in range(depth):
            made[(i // 8) * 8 * depth + 8 * k + i % 8] = f32(0)


@compiled
def _pack_right(
    base: Any, packed: Any, by_row: Any, by_column: Any, turned: Any, depth: Any, breadth: Any, across: Any
) -> None:
    """Row after row, filled up with zeros; channel by channel as above."""
    source, made, rows, columns = floats(base), floats(packed), ints(by_row), ints(by_column)
    if turned == 0:
        for j in range(breadth):
            channel = columns[j]
            for k in range(depth):
                made[k * across + j] = source[rows[k] + channel]
    else:
        for k in range(depth):
            channel, row = columns[k], k * across
            for j in range(breadth):
                made[row + j] = source[rows[j] + channel]
    for k in range(depth):
        for j in range(breadth, across):
            made[k * across + j] = f32(0)


@compiled
def _unpack(base: Any, made: Any, by_row: Any, by_column: Any, height: Any, breadth: Any, across: Any) -> None:
    """The result to its place."""
    target, source, rows, columns = floats(base), floats(made), ints(by_row), ints(by_column)
    for j in range(breadth):
        for i in range(height):
            target[rows[i] + columns[j]] = source[i * across + j]
