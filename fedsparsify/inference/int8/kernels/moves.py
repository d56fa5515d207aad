"""Copies of integer programs: floats into integers and back, between lanes, and across the borders of blocks.

Input: a row of the program table and addresses. Offsets in the arena count 16-bit integers, those of batch and output
floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from ....native.compiled import compiled, inlined
from ....native.pointers import bits_of, floats, ints, seen_as
from ....native.simd import sides
from ...kernels.vectors import read_int, write_frame
from .simd import IntEmitter

ONE, TWO, FOUR = (0,), (0,) * 2, (0,) * 4
ROUNDING = np.float32(3 << 22)  # added to a smaller number, the sum's last bits are the number, rounded to even
shorts = seen_as(types.CPointer(types.int16))


@inlined
def rounded(value: Any) -> Any:
    """A float of less than 2²² as an integer, rounded to even."""
    return np.int16(bits_of(value + ROUNDING) & 0xFFFF)


@compiled
def quantise(op: Any, source: Any, target: Any, params: Any, indices: Any, samples: Any) -> None:
    """Floats of a batch as integers: times 1 / scale of their channel, clamped and rounded. NaN becomes the lowest."""
    count, run = min(op.pair_count, samples * op.pairs_per_sample), op.run
    factors = floats(params + 4 * op.params)
    for c in range(op.channels):
        x, out = floats(source + 4 * c * op.source_channel), shorts(target + 2 * c * op.target_channel)
        pairs = ints(indices + 4 * op.pairs)
        factor, low, high = factors[c], factors[op.channels + c], factors[2 * op.channels + c]
        for k in range(count):
            a, b = pairs[2 * k], pairs[2 * k + 1]
            for j in range(run):
                value = x[a + j] * factor
                value = value if value > low else low
                out[b + j] = rounded(value if value < high else high)


@compiled
def quantise_rows(op: Any, source: Any, target: Any, params: Any, samples: Any) -> None:
    """Rows of features as integers, in vectors of samples."""
    factors, features = floats(params + 4 * op.params), op.channels
    for c in range(features):
        out, factor = shorts(target + 2 * c * op.target_channel), factors[c]
        low, high = factors[features + c], factors[2 * features + c]
        for sample in range(min(op.samples, samples)):
            value = floats(source + 4 * (sample * op.depth + c))[0] * factor
            value = value if value > low else low
            out[sample] = rounded(value if value < high else high)


@compiled
def dequantise(op: Any, source: Any, target: Any, params: Any, indices: Any, samples: Any) -> None:
    """Integers as floats of the output: times the scale of their channel."""
    count, run = min(op.pair_count, samples * op.pairs_per_sample), op.run
    scales = floats(params + 4 * op.params)
    for c in range(op.channels):
        x, out = shorts(source + 2 * c * op.source_channel), floats(target + 4 * c * op.target_channel)
        pairs, scale = ints(indices + 4 * op.pairs), scales[c]
        for k in range(count):
            a, b = pairs[2 * k], pairs[2 * k + 1]
            for j in range(run):
                out[b + j] = np.float32(x[a + j]) * scale


@intrinsic
def copy_ints(_, run, target, source):  # type: ignore[no-untyped-def]
    """A run of integers from address to address."""
    (count,) = sides(run)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = IntEmitter(builder, count)
        builder.store(e.load_anywhere(args[2]), builder.inttoptr(args[1], e.vector.as_pointer())).align = 2
        return context.get_dummy_value()

    return types.void(run, types.int64, types.int64), generate


@inlined
def move(op: Any, source: Any, target: Any, indices: Any, samples: Any) -> None:
    """Copy scattered integers, or runs of them."""
    if op.run == 4:
        _move_runs(FOUR, op, source, target, indices, samples)
    elif op.run == 2:
        _move_runs(TWO, op, source, target, indices, samples)
    else:
        _move_runs(ONE, op, source, target, indices, samples)


@compiled
def _move_runs(run: Any, op: Any, source: Any, target: Any, indices: Any, samples: Any) -> None:
    """Channel by channel: pairs (from, to) of each sample there is."""
    count = min(op.pair_count, samples * op.pairs_per_sample)
    for c in range(op.channels):
        a, b, at = source + 2 * c * op.source_channel, target + 2 * c * op.target_channel, indices + 4 * op.pairs
        for _ in range(count):
            copy_ints(run, b + 2 * read_int(at + 4), a + 2 * read_int(at))
            at += 8


@intrinsic
def shift_ints(_, width, target, source, mask):  # type: ignore[no-untyped-def]
    """The vector at any address `source` to `target`; lanes where the mask holds 0 become 0."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, mask = args
        e = IntEmitter(builder, lanes)
        e.store(builder.select(e.nonzero(mask), e.load_anywhere(source), e.constant(0)), target)
        return context.get_dummy_value()

    return types.void(width, types.int64, types.int64, types.int64), generate


@intrinsic
def int_frame(_, width, grid_rows, grid_columns, corner, row, rows, columns):  # type: ignore[no-untyped-def]
    """Write the halo of one pixel around a channel, as vectors.frame does; zeros outside of the image."""
    lanes, height, breadth = sides(width, grid_rows, grid_columns)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, corner, row, rows, columns = args
        e = IntEmitter(builder, lanes)
        write_frame(e, (height, breadth), corner, row, rows, columns, e.constant(0))
        return context.get_dummy_value()

    return types.void(width, grid_rows, grid_columns, *[types.int64] * 4), generate


@compiled
def write_halo(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Write zeros outside of the image, then hand border pixels from lane to lane; see kernels/moves.write_halo."""
    lanes, table = len(width), ints(indices + 4 * op.halo)
    above, left, below, right, across = table[0], table[1], table[2], table[3], table[4]
    vector, row_bytes, masks = 2 * lanes, 2 * op.target_row, indices + 4 * (op.halo + 5)
    for c in range(op.channels):
        corner, entry = arena + 2 * (op.target + c * op.target_channel), masks + 16 * lanes
        for _ in range(op.outside_count):
            cell = corner + 2 * read_int(entry)
            shift_ints(width, cell, cell, entry + 4)
            entry += 4 + 4 * lanes
        if op.frame_rows == 4 and across == 4:
            int_frame(width, FOUR, FOUR, corner, row_bytes, op.rows, op.columns)
            continue
        if op.frame_rows == 2 and across == 2:
            int_frame(width, TWO, TWO, corner, row_bytes, op.rows, op.columns)
            continue
        for i in range(op.rows):
            row = corner + i * row_bytes
            for j in range(left):
                shift_ints(width, row - (j + 1) * vector, row + (op.columns - 1 - j) * vector - 2, masks + 4 * lanes)
            for j in range(right):
                shift_ints(width, row + (op.columns + j) * vector, row + j * vector + 2, masks + 12 * lanes)
        for j in range(-left, op.columns + right):
            column, by = corner + j * vector, 2 * across
            for i in range(above):
                shift_ints(width, column - (i + 1) * row_bytes, column + (op.rows - 1 - i) * row_bytes - by, masks)
            for i in range(below):
                line = column + (op.rows + i) * row_bytes
                shift_ints(width, line, column + i * row_bytes + by, masks + 8 * lanes)


@compiled
def pool(width: Any, op: Any, arena: Any, params: Any) -> None:
    """The largest of 2 × 2 pixels, times a factor plus a shift."""
    numbers, lanes = ints(params + 4 * op.params), len(width)
    for c in range(op.channels):
        factor, shift = numbers[c], numbers[op.channels + c]
        for i in range(op.rows):
            upper = shorts(arena + 2 * (op.source + c * op.source_channel + 2 * i * op.source_row))
            lower = shorts(arena + 2 * (op.source + c * op.source_channel + (2 * i + 1) * op.source_row))
            out = shorts(arena + 2 * (op.target + c * op.target_channel + i * op.target_row))
            for j in range(op.columns):
                for lane in range(lanes):
                    k = 2 * j * lanes + lane
                    top = max(max(upper[k], upper[k + lanes]), max(lower[k], lower[k + lanes]))
                    out[j * lanes + lane] = np.int16(((np.int32(top) * factor + 16384) >> 15) + shift)
