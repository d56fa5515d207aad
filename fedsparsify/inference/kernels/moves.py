"""Copies between lanes, samples and workers: input, output, borders of blocks.

Input: a row of the program table and addresses. Output: floats at other addresses, unchanged.
"""

from __future__ import annotations

from typing import Any

from ...native.compiled import compiled, inlined
from ...native.pointers import ints
from ...native.simd import transpose, transpose_lines
from .vectors import copy_floats, frame, merge_lanes, prefetch, read_int, shift_lanes

ONE, TWO, THREE, FOUR = (0,), (0,) * 2, (0,) * 3, (0,) * 4


@inlined
def move(op: Any, source: Any, target: Any, indices: Any, samples: Any) -> None:
    """Copy scattered floats, or runs of them."""
    if op.run == 4:
        _move_runs(FOUR, op, source, target, indices, samples)
    elif op.run == 2:
        _move_runs(TWO, op, source, target, indices, samples)
    else:
        _move_runs(ONE, op, source, target, indices, samples)


@compiled
def _move_runs(run: Any, op: Any, source: Any, target: Any, indices: Any, samples: Any) -> None:
    """Channel by channel: pairs (from, to) of each sample there is; far targets are prefetched one channel ahead."""
    count, far, step = min(op.pair_count, samples * op.pairs_per_sample), op.prefetch > 0, 4 * op.target_channel
    for c in range(op.channels):
        a, b = source + 4 * c * op.source_channel, target + c * step
        at = indices + 4 * op.pairs
        if far:
            for k in range(count):
                prefetch(b + step + 4 * read_int(at + 8 * k + 4))
        for _ in range(count):
            copy_floats(run, b + 4 * read_int(at + 4), a + 4 * read_int(at))
            at += 8


@compiled
def spread(width: Any, op: Any, source: Any, target: Any, indices: Any) -> None:
    """An image into blocks, one per lane: squares as wide as a vector, the last of a row overlapping the one before."""
    lanes, blocks = len(width), indices + 4 * op.offsets
    for c in range(op.channels):
        for i in range(op.rows):
            a = source + 4 * (c * op.source_channel + i * op.source_row)
            b = target + 4 * (c * op.target_channel + i * op.target_row)
            for j in range(0, op.columns, lanes):
                j = min(j, op.columns - lanes)
                transpose_lines(width, b + 4 * j * lanes, a + 4 * j, blocks)


@compiled
def transpose_samples(width: Any, op: Any, source: Any, target: Any, samples: Any) -> None:
    """Rows of features into vectors of samples."""
    lanes = len(width)
    for first in range(0, min(op.samples, samples), lanes):
        rows = min(lanes, samples - first)
        whole = op.channels // lanes * lanes if rows == lanes else 0
        a, b = source + 4 * first * op.depth, target + 4 * first
        for c in range(0, whole, lanes):
            transpose(width, b + 4 * c * op.target_channel, 4 * op.target_channel, a + 4 * c, 4 * op.depth)
        for c in range(whole, op.channels):
            for row in range(rows):
                copy_floats(ONE, b + 4 * (c * op.target_channel + row), a + 4 * (row * op.depth + c))


@compiled
def write_halo(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Write the fill outside of the image, then hand border pixels from lane to lane: columns, then rows.

    The table holds above, left, below, right; the grid's columns; a mask for each of the four; then the vectors that
    are partly outside, each with its offset and a mask.
    """
    lanes, table = len(width), ints(indices + 4 * op.halo)
    above, left, below, right, across = table[0], table[1], table[2], table[3], table[4]
    vector, row_bytes, fill = 4 * lanes, 4 * op.target_row, op.fill
    masks = indices + 4 * (op.halo + 5)
    outside = indices + 4 * (op.halo + 5 + 4 * lanes)
    for c in range(op.channels if op.outside_count > 0 else 0):
        corner, entry = arena + 4 * (op.target + c * op.target_channel), outside
        for _ in range(op.outside_count):
            cell = corner + 4 * read_int(entry)
            shift_lanes(width, cell, cell, entry + 4, fill)
            entry += 4 + vector
    if op.frame_rows > 0:
        _frames(width, op, arena, across)
        return
    if op.border == len(TWO):
        _wide_frames(width, TWO, op, arena)
        return
    if op.border == len(THREE):
        _wide_frames(width, THREE, op, arena)
        return
    for c in range(op.channels):
        corner = arena + 4 * (op.target + c * op.target_channel)
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
def fetch(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Rows of pixels that another worker made; the table says which lanes take them."""
    vector = 4 * len(width)
    for c in range(op.channels):
        for i in range(op.rows):
            source = arena + 4 * (op.source + c * op.source_channel + i * op.source_row)
            target = arena + 4 * (op.target + c * op.target_channel + i * op.target_row)
            for j in range(op.columns):
                merge_lanes(width, target + j * vector, source + j * vector, indices + 4 * op.lane_mask)


@inlined
def _frames(width: Any, op: Any, arena: Any, across: Any) -> None:
    """The usual halo, of one pixel on each side; `frame_rows` are the rows of the lanes' grid."""
    row = 4 * op.target_row
    for c in range(op.channels):
        corner = arena + 4 * (op.target + c * op.target_channel)
        if op.frame_rows == 2 and across == 1:
            frame(width, TWO, ONE, ONE, corner, row, op.rows, op.columns, op.fill)
        elif op.frame_rows == 2 and across == 2 and op.rows == op.columns == 1:  # without the loops
            frame(width, TWO, TWO, ONE, corner, row, 1, 1, op.fill)
        elif op.frame_rows == 2 and across == 2:
            frame(width, TWO, TWO, ONE, corner, row, op.rows, op.columns, op.fill)
        elif op.frame_rows == 4 and across == 2:
            frame(width, FOUR, TWO, ONE, corner, row, op.rows, op.columns, op.fill)
        elif len(width) == 8:
            frame(width, TWO, FOUR, ONE, corner, row, op.rows, op.columns, op.fill)
        elif op.rows == op.columns == 1:
            frame(width, FOUR, FOUR, ONE, corner, row, 1, 1, op.fill)
        elif op.rows == op.columns == 2:
            frame(width, FOUR, FOUR, ONE, corner, row, 2, 2, op.fill)
        else:
            frame(width, FOUR, FOUR, ONE, corner, row, op.rows, op.columns, op.fill)


@compiled
def _wide_frames(width: Any, border: Any, op: Any, arena: Any) -> None:
    """A halo of two or three pixels on each side, where the lanes are the blocks of one image."""
    row = 4 * op.target_row
    for c in range(op.channels):
        corner = arena + 4 * (op.target + c * op.target_channel)
        if len(width) == 16:
            frame(width, FOUR, FOUR, border, corner, row, op.rows, op.columns, op.fill)
        elif len(width) == 8:
            frame(width, TWO, FOUR, border, corner, row, op.rows, op.columns, op.fill)
        else:
            frame(width, TWO, TWO, border, corner, row, op.rows, op.columns, op.fill)
