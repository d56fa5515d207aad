"""The operations, compiled for one width of vectors each and general in every shape.

Everything is an address: of a program (see program.Program.header), of the arena, of input and output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype

from ...native.compiled import compiled, inlined
from ...native.exponential import exponential
from ...native.memory import floats, ints, longs, seen_as
from ...native.simd import transpose
from ..lowering.rows import BEFORE, JOB, NEXT_PLACE, OPERATION, ORDER_WORDS, WORKER, Kind
from .activations import activation
from .dense import dense, winograd
from .sparse import linear, lone, small, sparse
from .vectors import (
    ask_for,
    await_mail,
    copy_floats,
    exchange,
    frame,
    meet,
    merge_lanes,
    pool_cell,
    pool_squares,
    read_int,
    shift_lanes,
    take_number,
)

ONE, TWO, FOUR = (0,), (0,) * 2, (0,) * 4
(
    PACK,
    UNPACK,
    MOVE,
    HALO,
    SPARSE,
    DENSE,
    WINOGRAD,
    POOL,
    AFFINE,
    ADD,
    CURVE,
    SOFTMAX,
    TRANSPOSE,
    MEET,
    SMALL,
    LINEAR,
    FETCH,
    LONE,
) = (int(kind) for kind in Kind)
ROW_BYTES, ORDER_BYTES = OPERATION.itemsize, 8 * len(ORDER_WORDS)
operation = seen_as(from_dtype(OPERATION))


def entries(lanes: int) -> list[Any]:
    """The functions that Python calls, for one width of vectors: see native.py."""
    width = (0,) * lanes

    def served(orders: Any, count: Any, arena: Any, x: Any, y: Any, mail: Any, gate: Any) -> None:
        serve(width, orders, count, arena, x, y, mail, gate)

    return [served, post.py_func]


@inlined
def execute(width: Any, program: Any, arena: Any, x: Any, y: Any, images: Any, gate: Any, comings: Any) -> None:
    """Run a program over one block of `images` images at address x, into y; the gate has counted `comings` before."""
    header = longs(program)
    table, rows, stream, params, indices = header[0], header[1], header[2], header[3], header[4]
    for k in range(rows):
        op = operation(table + k * ROW_BYTES)
        left = images - op.image
        if left <= 0:
            continue
        kind = op.kind
        if kind == SPARSE:
            sparse(width, op, arena, stream, params)
        elif kind == SMALL:
            small(width, op, arena, stream, params)
        elif kind == LONE:
            lone(width, op, arena, stream, params)
        elif kind == LINEAR:
            linear(op, arena, stream, params)
        elif kind == DENSE:
            dense(width, op, arena, params, indices)
        elif kind == WINOGRAD:
            winograd(width, op, arena, params, indices)
        elif kind == HALO:
            _halo(width, op, arena, indices)
        elif kind == FETCH:
            _fetch(width, op, arena, indices)
        elif kind == PACK:
            _move(op, x + 4 * op.source, arena + 4 * op.target, indices, left)
        elif kind == TRANSPOSE:
            _transpose(width, op, x + 4 * op.source, arena + 4 * op.target, left)
        elif kind == UNPACK:
            _move(op, arena + 4 * op.source, y + 4 * op.target, indices, left)
        elif kind == MOVE:
            _move(op, arena + 4 * op.source, arena + 4 * op.target, indices, left)
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
            meet(gate, comings + op.count)


@inlined
def serve(width: Any, orders: Any, count: Any, arena: Any, x: Any, y: Any, mail: Any, gate: Any) -> None:
    """Carry out `count` orders in an arena; or, with a mailbox, one's part of the job in it, once if there is a count.

    Without one every job is done until none comes for a while. One's part is the order of one's number, or, of a job
    done `together`, any orders that are left. One function for all, with one call of `execute`, as each that is
    compiled takes seconds.
    """
    words, step, together, worker, comings, last = longs(mail), 1, 0, 0, 0, count
    while mail == 0 or count > 0 or await_mail(mail, gate) == JOB:
        k = 0
        if mail != 0:
            orders, last, x, y, comings, together, worker = (
                words[1],
                words[2],
                words[3],
                words[4],
                words[5],
                words[6],
                words[WORKER],
            )
            step = last  # one order
            k = worker if together == 0 else take_number(gate + 8 * NEXT_PLACE)
        while k < last:
            order = longs(orders + k * ORDER_BYTES)
            place = arena if mail == 0 else order[1] + worker * order[2]
            execute(width, order[0], place, x + order[3], y + order[4], order[5], gate, comings)
            k = k + step if together == 0 else take_number(gate + 8 * NEXT_PLACE)
        if together > 0:
            meet(gate, comings + together)
        if mail == 0 or count > 0:
            break


@compiled
def post(mail: Any, state: Any) -> None:
    """Put a state into a mailbox, and beside it what it held before."""
    longs(mail)[BEFORE] = exchange(mail, state)


@inlined
def _move(op: Any, source: Any, target: Any, indices: Any, images: Any) -> None:
    """Copy scattered floats, or runs of them."""
    if op.tile == 4:
        _move_runs(FOUR, op, source, target, indices, images)
    elif op.tile == 2:
        _move_runs(TWO, op, source, target, indices, images)
    else:
        _move_runs(ONE, op, source, target, indices, images)


@compiled
def _move_runs(run: Any, op: Any, source: Any, target: Any, indices: Any, images: Any) -> None:
    """Channel by channel: pairs (from, to) of each image that is there; what is far is asked for a channel ahead."""
    count, far, apart = min(op.count, images * op.per_image), op.flag > 0, 4 * op.target_channel
    for c in range(op.channels):
        a, b = source + 4 * c * op.source_channel, target + c * apart
        at = indices + 4 * op.table
        if far:
            for k in range(count):
                ask_for(b + apart + 4 * read_int(at + 8 * k + 4))
        for _ in range(count):
            copy_floats(run, b + 4 * read_int(at + 4), a + 4 * read_int(at))
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
                copy_floats(ONE, b + 4 * (c * op.target_channel + row), a + 4 * (row * op.depth + c))


@compiled
def _halo(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Write the fill outside of the image, then hand border pixels from lane to lane: columns, then rows.

    The table holds above, left, below, right; the grid's columns; a mask for each of the four; then the cells to fill.
    """
    lanes, table, values = len(width), ints(indices + 4 * op.table), floats(arena)
    above, left, below, right, across = table[0], table[1], table[2], table[3], table[4]
    vector, row_bytes, fill = 4 * lanes, 4 * op.target_row, op.low
    masks = indices + 4 * (op.table + 5)
    if op.flag > 0:
        _frames(width, op, arena, across)
        return
    for c in range(op.channels):
        start = op.target + c * op.target_channel
        for e in range(op.count):
            values[start + table[5 + 4 * lanes + e]] = fill
        corner = arena + 4 * start
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
def _fetch(width: Any, op: Any, arena: Any, indices: Any) -> None:
    """Rows of pixels that another worker made; the table says which lanes take them."""
    vector = 4 * len(width)
    for c in range(op.channels):
        for i in range(op.rows):
            source = arena + 4 * (op.source + c * op.source_channel + i * op.source_row)
            target = arena + 4 * (op.target + c * op.target_channel + i * op.target_row)
            for j in range(op.columns):
                merge_lanes(width, target + j * vector, source + j * vector, indices + 4 * op.table)


@inlined
def _frames(width: Any, op: Any, arena: Any, across: Any) -> None:
    """The usual halo, of one pixel on each side; the flag is the grid's rows."""
    row = 4 * op.target_row
    for c in range(op.channels):
        corner = arena + 4 * (op.target + c * op.target_channel)
        if op.flag == 2 and across == 1:
            frame(width, TWO, ONE, corner, row, op.rows, op.columns, op.low)
        elif op.flag == 2 and across == 2 and op.rows == op.columns == 1:  # without the loops
            frame(width, TWO, TWO, corner, row, 1, 1, op.low)
        elif op.flag == 2 and across == 2:
            frame(width, TWO, TWO, corner, row, op.rows, op.columns, op.low)
        elif op.flag == 4 and across == 2:
            frame(width, FOUR, TWO, corner, row, op.rows, op.columns, op.low)
        elif len(width) == 8:
            frame(width, TWO, FOUR, corner, row, op.rows, op.columns, op.low)
        elif op.rows == op.columns == 1:
            frame(width, FOUR, FOUR, corner, row, 1, 1, op.low)
        elif op.rows == op.columns == 2:
            frame(width, FOUR, FOUR, corner, row, 2, 2, op.low)
        else:
            frame(width, FOUR, FOUR, corner, row, op.rows, op.columns, op.low)


@compiled
def _pool(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Windows given as (first, behind last) row and column, or 2 × 2 side by side; means take a factor per output."""
    rows, columns = ints(indices + 4 * op.table), ints(indices + 4 * (op.table + 2 * op.rows))
    scale, shift = floats(params + 4 * op.params), floats(params + 4 * (op.params + op.channels))
    factors = floats(params + 4 * (op.params + 2 * op.channels))
    vector, row_bytes = 4 * len(width), 4 * op.source_row
    for c in range(op.channels):
        source = arena + 4 * (op.source + c * op.source_channel)
        target = arena + 4 * (op.target + c * op.target_channel)
        a, b = scale[c], shift[c]
        if op.tile == 1:
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
                pool_cell(width, out, cell, row_bytes, height, breadth, op.flag, factor, b, op.low, op.high)


@compiled
def _affine(width: Any, op: Any, arena: Any, params: Any) -> None:
    scale, shift = floats(params + 4 * op.params), floats(params + 4 * (op.params + op.channels))
    for c in range(op.channels):
        a, b = scale[c], shift[c]
        for i in range(op.rows):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for lane in range(op.columns * len(width)):
                target[lane] = min(max(source[lane] * a + b, op.low), op.high)


@compiled
def _add(width: Any, op: Any, arena: Any) -> None:
    for c in range(op.channels):
        for i in range(op.rows):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            second = floats(arena + 4 * (op.second + c * op.second_channel + i * op.second_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for lane in range(op.columns * len(width)):
                target[lane] = min(max(source[lane] + second[lane], op.low), op.high)


@compiled
def _curve(width: Any, op: Any, arena: Any) -> None:
    for c in range(op.channels):
        for i in range(op.rows):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for lane in range(op.columns * len(width)):
                target[lane] = activation(op.flag, source[lane], op.low)


@compiled
def _softmax(width: Any, op: Any, arena: Any) -> None:
    for i in range(op.rows):
        for j in range(op.columns * len(width)):
            source = floats(arena + 4 * (op.source + i * op.source_row + j))
            target = floats(arena + 4 * (op.target + i * op.target_row + j))
            top, total = np.float32(-np.inf), np.float32(0)
            for c in range(op.channels):
                top = max(top, source[c * op.source_channel])
            for c in range(op.channels):
                share = exponential(source[c * op.source_channel] - top)
                target[c * op.target_channel] = share
                total += share
            for c in range(op.channels):
                target[c * op.target_channel] /= total
