"""Convolutions and the gradients of their weights, tile by tile.

In: a row of a program. Out: the row's outputs, input gradients or weight gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype

from ....native.compiled import compiled, inlined
from ....native.pointers import ints, seen_as
from .gradient_tiles import gradient_visit, unpool_tile
from .rows import CODES, RELU_POOL, RELU_STREAMED, ROW
from .tiles import conv_visit, prefetch_rows

FOUR = (0,) * 4
CONVOLUTION = CODES["convolution"]
row_at = seen_as(from_dtype(ROW))


@inlined
def bit_bytes_of(width: Any) -> Any:
    """Bytes that hold one bit per lane."""
    return max(1, len(width) // 8)


@compiled
def tiles(width: Any, tall: Any, op: Any) -> None:
    """A convolution, or its weights' gradient, tile by tile; smaller tiles cover what is left at the edges."""
    most, wide = len(tall), len(FOUR)
    for group in range(op.groups):
        top = 0
        while top < op.rows:
            rows = most if op.rows - top >= most else 2 if op.rows - top >= 2 else 1
            left = 0
            while left < op.columns:
                columns = wide if op.columns - left >= wide else 2 if op.columns - left >= 2 else 1
                if op.op == CONVOLUTION:
                    _conv_tile(width, tall, op, group, top, left, rows, columns)
                else:
                    _gradient_tile(width, tall, op, group, top, left, rows, columns)
                left += columns
            top += rows


@inlined
def _prefetch_inputs(width: Any, tall: Any, op: Any, x: Any, left: Any, block: Any, c: Any) -> None:
    """Prefetch what the next tile reads and this one does not, of the block's channels, a few at each visit.

    Tiles jump from plane to plane, which the processor does not foresee.
    """
    ends = left + 8 > op.columns
    channel, last = block * op.block + c, min((block + 1) * op.block, op.inputs)
    while channel < last:  # a range with a step would make numba add a check for zero
        corner = x + channel * op.x_channel
        if ends:  # the next row of tiles, from its left end
            corner += op.next_row - left * op.x_column
            prefetch_rows(width, FOUR, corner, op.x_row, len(tall), 0)
            prefetch_rows(width, FOUR, corner + 4 * op.x_column, op.x_row, len(tall), 0)
        else:
            prefetch_rows(width, FOUR, corner + op.next_column, op.x_row, len(tall) + op.window_rows - 1, 0)
        channel += op.channels


@inlined
def _conv_tile(width: Any, tall: Any, op: Any, group: Any, top: Any, left: Any, rows: Any, columns: Any) -> None:
    """All channels of a tile, one block of inputs after the other."""
    x = op.x + group * op.x_group + top * op.x_row + left * op.x_column
    if op.spread:
        x = op.x
        _unpool(width, op, group, top, left, rows)
    if op.local:
        y = op.y
        bits = op.bits + group * op.bits_group + top * op.bits_row + left * bit_bytes_of(width)
    elif op.mode == RELU_POOL:
        y = op.y + group * op.y_group + top // 2 * op.y_row + left // 2 * op.y_column
        bits = op.bits + group * op.bits_group + top // 2 * op.bits_row + left // 2 * 4 * bit_bytes_of(width)
    else:
        y = op.y + group * op.y_group + top * op.y_row + left * op.y_column
        bits = op.bits + group * op.bits_group + top * op.bits_row + left * bit_bytes_of(width)
    counts, offsets, weights = ints(op.counts), op.offsets, op.weights
    visits = op.blocks * op.channels
    for block in range(op.blocks):
        first, last = np.int64(block == 0), np.int64(block == op.blocks - 1)
        for c in range(op.channels):
            visit = block * op.channels + c
            count = np.int64(counts[visit])
            beside, above = np.int64(counts[visits + visit]), np.int64(counts[2 * visits + visit])
            bias = op.bias + 4 * c if op.bias else np.int64(0)
            sums = op.sums + 4 * len(width) * 4 * 4 * c
            given = (
                *(rows, columns, op.near, x, op.x_row, op.x_column, offsets, weights, count, op.by_four),
                *(
                    beside,
                    above,
                    bias,
                    first,
                    last,
                    sums,
                    op.mode,
                    y + c * op.y_channel,
                    op.y_row,
                    op.y_column,
                    bits + c * op.bits_channel,
                    op.bits_row,
                ),
            )
            if (op.prefetched or op.spread) and columns == 4:
                if op.prefetched:
                    _prefetch_inputs(width, tall, op, x, left, block, c)
                if last and op.mode != RELU_POOL and op.mode != RELU_STREAMED and not op.local:
                    prefetch_rows(width, FOUR, y + (c + 1) * op.y_channel, op.y_row, len(tall), 1)
            conv_visit(width, tall, given)
            offsets += 4 * count
            weights += 4 * count
    if op.fused:
        _gradient_tile(width, tall, row_at(op.fused), group, top, left, rows, columns)


@inlined
def _unpool(width: Any, op: Any, group: Any, top: Any, left: Any, rows: Any) -> None:
    """Gradients of all channels before their pool, for one tile: z and its bits to x."""
    z = op.z + group * op.z_group + top // 2 * op.z_row + left // 2 * op.z_column
    bits = op.pool_bits + group * op.pool_bits_group + top // 2 * op.pool_bits_row + left // 2 * 4 * bit_bytes_of(width)
    corner = op.x - op.spread // 2 * (op.x_row + op.x_column)
    for _ in range(op.inputs):
        prefetch_rows(width, FOUR, z + op.z_channel - op.z_row - op.z_column, op.z_row, 4, 0)
        unpool_tile(width, (op.spread, rows, z, op.z_row, bits, op.pool_bits_row, corner, op.x_row))
        z += op.z_channel
        bits += op.pool_bits_channel
        corner += op.x_channel


@compiled
def _gradient_tile(width: Any, tall: Any, op: Any, group: Any, top: Any, left: Any, rows: Any, columns: Any) -> None:
    """The tile's share of the gradients of all survivors and biases."""
    x = op.x + group * op.x_group + top * op.x_row + left * op.x_column
    bits = np.int64(0)
    if op.local:
        y = op.y
    elif op.pool_bits:
        y = op.y + group * op.y_group + top // 2 * op.y_row + left // 2 * op.y_column
        bits = op.pool_bits + group * op.pool_bits_group + top // 2 * op.pool_bits_row
        bits += left // 2 * 4 * bit_bytes_of(width)
    else:
        y = op.y + group * op.y_group + top * op.y_row + left * op.y_column
    counts, offsets, gradient = ints(op.counts), op.offsets, op.gradient
    visits = op.blocks * op.channels
    for block in range(op.blocks):
        for c in range(op.channels):
            visit = block * op.channels + c
            count = np.int64(counts[visit])
            beside, above = np.int64(counts[visits + visit]), np.int64(counts[2 * visits + visit])
            total = op.bias_gradient + 4 * c if op.bias_gradient and block == 0 else np.int64(0)
            if count == 0 and total == 0:
                continue
            place = y + c * op.y_channel
            given = (
                *(rows, columns, op.near, x, op.x_row, op.x_column, offsets, gradient, count, beside, above),
                *(place, op.y_row, op.y_column, total, bits + c * op.pool_bits_channel, op.pool_bits_row),
            )
            if op.prefetched and columns == 4:
                _prefetch_inputs(width, tall, op, x, left, block, c)
                if block == 0:
                    prefetch_rows(width, FOUR, place + op.y_channel, op.y_row, len(tall), 0)
            gradient_visit(width, tall, given)
            offsets += 4 * count
            gradient += 4 * count
