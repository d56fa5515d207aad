"""A program's rows on one core, compiled for one width of vectors.

In: the address of the first row, and how many. Out: what the rows write. See `rows.py` for their fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....native.compiled import compiled, inlined
from ....native.pointers import floats, ints, longs
from . import vectors
from .rows import CODES, ROW, tile_rows
from .tile_walk import bit_bytes_of, row_at, tiles

f32, u32 = np.float32, np.uint32
ROW_BYTES = ROW.itemsize
NONE = (f32(0),)  # where a function of vectors takes no factors

IMAGES, CONVOLUTION, WEIGHT_GRADIENT, NORM, NORM_BACK = (
    CODES[name] for name in ("images", "convolution", "weight_gradient", "norm", "norm_back")
)
MAX_POOL, MAX_POOL_BACK, MEAN_POOL, MEAN_POOL_BACK = (
    CODES[name] for name in ("max_pool", "max_pool_back", "mean_pool", "mean_pool_back")
)
ADD, RELU_BACK, MASK, MULTIPLY, DRAW, COPY, CLEAR, PERMUTE, LOGITS, LOGITS_BACK = (
    CODES[name]
    for name in (
        *("add", "relu_back", "mask", "multiply", "draw", "copy", "clear", "permute", "logits", "logits_back"),
    )
)


def entries(lanes: int) -> list[Any]:
    """The function that Python calls, for one width of vectors."""
    width, tall = (0,) * lanes, (0,) * tile_rows(lanes)

    def run(rows: Any, count: Any) -> None:
        for k in range(count):
            _run(width, tall, row_at(rows + k * ROW_BYTES))

    return [run]


@inlined
def _run(width: Any, tall: Any, op: Any) -> None:
    """One row."""
    if op.op == CONVOLUTION or op.op == WEIGHT_GRADIENT:
        tiles(width, tall, op)
    elif op.op == NORM:
        _norm(width, op)
    elif op.op == NORM_BACK:
        _norm_back(width, op)
    elif op.op == PERMUTE:
        _permute(op)
    elif op.op == IMAGES:
        _images(width, op)
    elif op.op == DRAW:
        _draw(width, op)
    elif op.op == LOGITS:
        _logits(width, op)
    elif op.op == LOGITS_BACK:
        _logits_back(width, op)
    elif op.op == MAX_POOL or op.op == MAX_POOL_BACK or op.op == MEAN_POOL or op.op == MEAN_POOL_BACK:
        _pool(width, op)
    else:
        _pointwise(width, op)


@inlined
def _valid(width: Any, op: Any) -> Any:
    """Images in the last group."""
    return op.batch - (op.groups - 1) * len(width)


@inlined
def _reduced(width: Any, op: Any, whole: Any, last: Any) -> Any:
    """The sum of the lanes of two vectors, of the second only those that hold an image of the batch."""
    total, valid = f32(0), _valid(width, op)
    for lane in range(len(width)):
        total += floats(whole)[lane]
        if lane < valid:
            total += floats(last)[lane]
    return total


@inlined
def _runs(op: Any, joined: Any) -> Any:
    """Rows and columns of a plane, as one row where rows follow each other in memory."""
    return (1, op.rows * op.columns) if joined else (op.rows, op.columns)


@compiled
def _norm(width: Any, op: Any) -> None:
    """Batch norm of x to y, plus z if there is one, by the batch's moments or the running ones."""
    size = 4 * len(width)
    count = f32(op.batch * op.rows * op.columns)
    rows, columns = _runs(op, op.x_row == op.columns * size)
    for c in range(op.channels):
        mean = f32(0)
        for k in range(0 if op.fixed else 2):  # the mean, then the variance
            vectors.clear(width, 2, (op.sums,), NONE)
            for group in range(op.groups):
                into = op.sums + (size if group == op.groups - 1 else 0)
                for i in range(rows):
                    x = op.x + group * op.x_group + c * op.x_channel + i * op.x_row
                    if k == 0:
                        vectors.norm_sum(width, columns, (x, into), NONE)
                    else:
                        vectors.norm_squares(width, columns, (x, into), (mean,))
            total = _reduced(width, op, op.sums, op.sums + size) / count
            if k == 0:
                mean = total
            else:
                variance = total
        if op.fixed:
            mean, variance = floats(op.running_mean)[c], floats(op.running_var)[c]
        else:
            floats(op.running_mean)[c] += op.momentum * (mean - floats(op.running_mean)[c])
            unbiased = variance * (count / (count - f32(1)))
            floats(op.running_var)[c] += op.momentum * (unbiased - floats(op.running_var)[c])
        floats(op.mean)[c] = mean
        floats(op.deviation)[c] = f32(1) / np.sqrt(variance + op.eps)
        scale, shift = _affine(op, c)
        high = 2 if op.pool_bits else 1  # rows that are taken at a time
        for group in range(op.groups):
            for i in range(op.rows // 2 if op.pool_bits else op.rows):
                x = op.x + group * op.x_group + c * op.x_channel + i * high * op.x_row
                y = op.y + group * op.y_group + c * op.y_channel + i * op.y_row
                if op.pool_bits:
                    places = (y, x, x + op.x_row, _pool_bits(op, group, c, i))
                    vectors.norm_pool(width, op.columns // 2, places, (scale, shift))
                elif op.z:
                    z = op.z + group * op.z_group + c * op.z_channel + i * op.z_row
                    if op.relu:
                        vectors.norm_add_relu(width, op.columns, (y, x, z), (scale, shift))
                    else:
                        vectors.norm_add(width, op.columns, (y, x, z), (scale, shift))
                elif op.relu:
                    vectors.norm_relu(width, op.columns, (y, x), (scale, shift))
                else:
                    vectors.norm(width, op.columns, (y, x), (scale, shift))


@inlined
def _pool_bits(op: Any, group: Any, c: Any, i: Any) -> Any:
    """Where the bits of a row after a pool lie."""
    return op.pool_bits + group * op.pool_bits_group + c * op.pool_bits_channel + i * op.pool_bits_row


@inlined
def _affine(op: Any, c: Any) -> Any:
    """Scale and shift of a batch norm's channel."""
    scale = floats(op.deviation)[c] * floats(op.scale)[c]
    return scale, floats(op.shift)[c] - floats(op.mean)[c] * scale


@compiled
def _norm_back(width: Any, op: Any) -> None:
    """From y, the gradient of the outputs, and z, the inputs, to x, the gradient of the inputs (unless it is 0)."""
    size = 4 * len(width)
    count = f32(op.batch * op.rows * op.columns)
    rows, columns = _runs(op, op.y_row == op.columns * size and op.z_row == op.y_row)
    for c in range(op.channels):
        scale, shift = _affine(op, c)
        mean, inverse = floats(op.mean)[c], floats(op.deviation)[c]
        vectors.clear(width, 2, (op.sums,), NONE)
        high = 2 if op.pool_bits else 1  # rows that are taken at a time
        for group in range(op.groups):
            for i in range(op.rows // 2 if op.pool_bits else rows):
                y = op.y + group * op.y_group + c * op.y_channel + i * op.y_row
                z = op.z + group * op.z_group + c * op.z_channel + i * high * op.z_row
                if op.pool_bits:
                    places = (y, z, z + op.z_row, _pool_bits(op, group, c, i), op.sums, op.sums + size)
                    vectors.norm_pool_back_sums(width, op.columns // 2, places, (mean,))
                elif op.relu:
                    vectors.norm_relu_back_sums(width, columns, (y, z, op.sums, op.sums + size), (scale, shift, mean))
                else:
                    vectors.norm_back_sums(width, columns, (y, z, op.sums, op.sums + size), (scale, shift, mean))
        total, product = f32(0), f32(0)
        for lane in range(len(width)):
            total += floats(op.sums)[lane]
            product += floats(op.sums + size)[lane]
        product *= inverse
        if op.gradient:
            floats(op.gradient)[c] += product
        if op.bias_gradient:
            floats(op.bias_gradient)[c] += total
        if op.x:
            along = constant = f32(0)
            if not op.fixed:  # the batch's moments depend on the inputs
                along = -scale * product * inverse / count
                constant = -scale * total / count - along * mean
            for group in range(op.groups):
                _norm_back_planes(width, op, group, c, (scale, shift, along, constant))


@inlined
def _norm_back_planes(width: Any, op: Any, group: Any, c: Any, numbers: Any) -> None:
    high = 2 if op.pool_bits else 1
    for i in range(op.rows // 2 if op.pool_bits else op.rows):
        x = op.x + group * op.x_group + c * op.x_channel + i * high * op.x_row
        y = op.y + group * op.y_group + c * op.y_channel + i * op.y_row
        z = op.z + group * op.z_group + c * op.z_channel + i * high * op.z_row
        if op.pool_bits:
            places = (x, x + op.x_row, y, z, z + op.z_row, _pool_bits(op, group, c, i))
            vectors.norm_pool_back(width, op.columns // 2, places, numbers)
        elif op.relu:
            if op.accumulate:
                vectors.norm_relu_back_accumulate(width, op.columns, (x, y, z), numbers)
            else:
                vectors.norm_relu_back(width, op.columns, (x, y, z), numbers)
        elif op.accumulate:
            vectors.norm_back_accumulate(width, op.columns, (x, y, z), numbers)
        else:
            vectors.norm_back(width, op.columns, (x, y, z), numbers)
    if group == op.groups - 1:  # lanes without an image of the batch have no gradient
        for i in range(op.rows):
            row = floats(op.x + group * op.x_group + c * op.x_channel + i * op.x_row)
            for lane in range(_valid(width, op), len(width)):
                for j in range(op.columns):
                    row[j * len(width) + lane] = f32(0)


@compiled
def _pool(width: Any, op: Any) -> None:
    """Pools over windows, whose bounds are tables: of rows from, rows to, columns from, columns to."""
    bounds, word = longs(op.windows), bit_bytes_of(width)
    cell = op.window_rows * op.window_columns * word
    for group in range(op.groups):
        for c in range(op.channels):
            for i in range(op.rows):
                top, bottom = bounds[i], bounds[op.rows + i]
                for j in range(op.columns):
                    left, right = bounds[2 * op.rows + j], bounds[2 * op.rows + op.columns + j]
                    x = op.x + group * op.x_group + c * op.x_channel + top * op.x_row + left * op.x_column
                    y = op.y + group * op.y_group + c * op.y_channel + i * op.y_row + j * op.y_column
                    bits = op.bits + group * op.bits_group + c * op.bits_channel + i * op.bits_row + j * cell
                    high, wide = bottom - top, right - left
                    if op.op == MAX_POOL:
                        max_row = op.window_columns * word
                        vectors.max_window(width, y, x, op.x_row, high, wide, bits, max_row)
                    elif op.op == MAX_POOL_BACK:
                        max_row = op.window_columns * word
                        vectors.max_window_back(width, x, y, op.x_row, high, wide, bits, max_row, op.accumulate)
                    elif op.op == MEAN_POOL:
                        vectors.mean_window(width, y, x, op.x_row, high, wide, floats(op.scale)[i * op.columns + j])
                    else:
                        factor = floats(op.scale)[i * op.columns + j]
                        vectors.mean_window_back(width, x, y, op.x_row, high, wide, factor)


@compiled
def _pointwise(width: Any, op: Any) -> None:
    """Functions of each value alone: y from x, and z."""
    for group in range(op.groups):
        for c in range(op.channels):
            for i in range(op.rows):
                x = op.x + group * op.x_group + c * op.x_channel + i * op.x_row
                y = op.y + group * op.y_group + c * op.y_channel + i * op.y_row
                z = op.z + group * op.z_group + c * op.z_channel + i * op.z_row
                if op.op == COPY:
                    if op.relu:
                        vectors.relu(width, op.columns, (y, x), NONE)
                    elif op.accumulate:
                        vectors.accumulate(width, op.columns, (y, x), NONE)
                    else:
                        vectors.copy(width, op.columns, (y, x), NONE)
                elif op.op == ADD:
                    if op.relu:
                        vectors.add_relu(width, op.columns, (y, x, z), NONE)
                    else:
                        vectors.add(width, op.columns, (y, x, z), NONE)
                elif op.op == RELU_BACK:
                    if op.accumulate:
                        vectors.relu_back_accumulate(width, op.columns, (y, x, z), NONE)
                    else:
                        vectors.relu_back(width, op.columns, (y, x, z), NONE)
                elif op.op == MULTIPLY:
                    if op.accumulate:
                        vectors.multiply_accumulate(width, op.columns, (y, x, z), NONE)
                    else:
                        vectors.multiply(width, op.columns, (y, x, z), NONE)
                elif op.op == MASK:
                    bits = op.bits + group * op.bits_group + c * op.bits_channel + i * op.bits_row
                    vectors.mask_run(width, op.columns, y, bits)
                else:  # CLEAR
                    vectors.clear(width, op.columns, (y,), NONE)


@compiled
def _permute(op: Any) -> None:
    """Weights into the order of another stream."""
    source, target, order = floats(op.x), floats(op.y), ints(op.order)
    for k in range(op.survivors):
        target[k] = source[order[k]]


@compiled
def _images(width: Any, op: Any) -> None:
    """Samples into vectors; lanes beyond the batch repeat the first sample, and have no effect."""
    for group in range(op.groups):
        for c in range(op.channels):
            for i in range(op.rows):
                target = floats(op.y + group * op.y_group + c * op.y_channel + i * op.y_row)
                for lane in range(len(width)):
                    image = group * len(width) + lane
                    place = (image if image < op.batch else 0) * op.per_image + (c * op.rows + i) * op.columns
                    source = floats(op.x + 4 * place)
                    for j in range(op.columns):
                        target[j * len(width) + lane] = source[j]


@inlined
def _mixed(x: Any) -> Any:
    """As `keyed._mix`."""
    x = u32(u32(x ^ (x >> u32(16))) * u32(0x7FEB352D))
    x = u32(u32(x ^ (x >> u32(15))) * u32(0x846CA68B))
    return u32(x ^ (x >> u32(16)))


@compiled
def _draw(width: Any, op: Any) -> None:
    """The factors of a dropout, as `keyed.KeyedDropout` draws them."""
    inner, outer = u32(op.inner), u32(op.outer)
    for group in range(op.groups):
        for c in range(op.channels):
            for i in range(op.rows):
                y = floats(op.y + group * op.y_group + c * op.y_channel + i * op.y_row)
                for j in range(op.columns):
                    for lane in range(len(width)):
                        number = (group * len(width) + lane) * op.per_image + (c * op.rows + i) * op.columns + j
                        bits = _mixed(u32(_mixed(u32(u32(number) + inner)) ^ outer))
                        kept = f32(bits >> u32(8)) * f32(2.0**-24) >= op.threshold
                        y[j * len(width) + lane] = op.factor if kept else f32(0)


@compiled
def _logits(width: Any, op: Any) -> None:
    """A value as (batch, classes)."""
    for image in range(op.batch):
        group, lane = image // len(width), image % len(width)
        for c in range(op.channels):
            value = floats(op.x + group * op.x_group + c * op.x_channel)[lane]
            floats(op.y)[image * op.channels + c] = value


@compiled
def _logits_back(width: Any, op: Any) -> None:
    """A gradient (batch, classes) as a value; zero in lanes without an image of the batch."""
    for group in range(op.groups):
        for c in range(op.channels):
            for lane in range(len(width)):
                image, value = group * len(width) + lane, f32(0)
                if image < op.batch:
                    value = floats(op.x)[image * op.channels + c]
                floats(op.y + group * op.y_group + c * op.y_channel)[lane] = value
