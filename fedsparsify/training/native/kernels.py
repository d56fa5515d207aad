"""An epoch of a perceptron's training on one core, compiled for one width of vectors.

The weights of a model stay in the core's second-level cache throughout. Gradients are never stored: each tile of a
weight is moved as soon as its gradient has been summed up in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype

from ...native.compiled import compiled, inlined
from ...native.exponential import exponential
from ...native.pointers import floats, longs, seen_as
from ...native.simd import transpose
from .layers import LAYER, PLAN, PRODUCT, ROWS, wide_at
from .simd import product_tile, update_tile

ONE, FOUR = (0,), (0,) * 4
HEIGHT = (0,) * ROWS
BLOCK = 96  # inputs whose weights, in a panel, stay in the nearest cache while all rows of a batch meet them
LAYER_BYTES, PRODUCT_BYTES = LAYER.itemsize, PRODUCT.itemsize
f32 = np.float32
layer_at, product_at, plan_at = (seen_as(from_dtype(record)) for record in (LAYER, PRODUCT, PLAN))


def entries(lanes: int) -> list[Any]:
    """The function that Python calls, for one width of vectors."""
    width, wide = (0,) * lanes, (0,) * wide_at(lanes)

    def trained(plan: Any, order: Any, samples: Any) -> None:
        _epoch(width, wide, plan_at(plan), order, samples)

    return [trained]


@inlined
def _epoch(width: Any, wide: Any, plan: Any, order: Any, samples: Any) -> None:
    """Train on some samples, batch by batch, in their order."""
    for number in range(-(-samples // plan.batch)):  # with a step, numba would make an error for when it is zero
        first = number * plan.batch
        count = min(plan.batch, samples - first)
        rows = -(-count // ROWS) * ROWS
        _find(plan, order + 8 * first, count, rows)
        for k in range(plan.count):
            _multiply(width, wide, product_at(plan.forward + k * PRODUCT_BYTES), rows)
        _loss(width, plan, order, first, count)
        for k in range(plan.count - 1, -1, -1):
            layer = layer_at(plan.layers + k * LAYER_BYTES)
            if k > 0:
                _turn(width, wide, layer)
                _multiply(width, wide, product_at(plan.backward + k * PRODUCT_BYTES), rows)
            _update(width, wide, plan, layer, count)


@inlined
def _find(plan: Any, order: Any, count: Any, rows: Any) -> None:
    """The addresses of a batch's samples; rows that are left over repeat the first, and come to nothing."""
    table, picked = longs(layer_at(plan.layers).rows), longs(order)
    for row in range(rows):
        table[row] = plan.samples + picked[row if row < count else 0] * plan.stride


@compiled
def _multiply(width: Any, wide: Any, op: Any, rows: Any) -> None:
    """A product, panel by panel."""
    many = op.vectors // len(wide)
    for panel in range(many):
        _panel(width, wide, op, rows, panel * len(wide))
    for vector in range(many * len(wide), op.vectors):
        _panel(width, ONE, op, rows, vector)


@inlined
def _panel(width: Any, columns: Any, op: Any, rows: Any, vector: Any) -> None:
    across, step = 4 * len(width) * len(columns), 4 * len(width) * op.vectors
    weights = op.weights + 4 * len(width) * vector * (op.start + 1)
    for k in range(0, op.depth, BLOCK):
        count = min(BLOCK, op.depth - k)
        for row in range(0, rows, ROWS):
            at = 4 * len(width) * vector + row * step
            begin, begin_step = weights + op.start * across, 0
            if k > 0:
                begin, begin_step = op.out + at, step
            end, gate = k + count == op.depth, op.gate + at if op.gate else 0
            product_tile(
                *(width, HEIGHT, columns, op.rows + 8 * row, 4 * k, weights + k * across, count, begin, begin_step),
                *(end, op.low, gate, op.out + at, step),
            )


@compiled
def _turn(width: Any, wide: Any, layer: Any) -> None:
    """The transposed weights, in panels too."""
    lanes, blocks = len(width), layer.depth // len(width)
    for v in range(layer.vectors):
        source, across = _column(width, wide, layer.vectors, layer.depth + 1, v)
        for i in range(blocks):
            target, target_across = _column(width, wide, blocks, layer.vectors * lanes + 1, i)
            target += layer.turned + v * lanes * target_across
            transpose(width, target, target_across, layer.weights + source + i * lanes * across, across)


@inlined
def _column(width: Any, wide: Any, vectors: Any, rows: Any, vector: Any) -> Any:
    """Where a vector of outputs begins in panels of so many rows, and the bytes from a row to the next."""
    many = len(wide) if vector < vectors // len(wide) * len(wide) else 1
    inside = vector % many
    return 4 * len(width) * ((vector - inside) * rows + inside), 4 * len(width) * many


@compiled
def _loss(width: Any, plan: Any, order: Any, first: Any, count: Any) -> None:
    """Softmax and cross entropy: the gradient in the logits of a batch, and what its losses are made of."""
    last = plan.count - 1
    layer, out = layer_at(plan.layers + last * LAYER_BYTES), product_at(plan.forward + last * PRODUCT_BYTES).out
    share, size = f32(1) / f32(count), 4 * len(width) * layer.vectors
    for row in range(count):
        logits, slopes = floats(out + row * size), floats(layer.slopes + row * size)
        top, total = logits[0], f32(0)
        for c in range(layer.outputs):
            top = max(top, logits[c])
        for c in range(layer.outputs):
            slopes[c] = exponential(logits[c] - top)
        for c in range(layer.outputs):
            total += slopes[c]
        factor, label = share / total, longs(plan.labels)[longs(order)[first + row]]
        for c in range(layer.outputs):
            slopes[c] *= factor
        slopes[label] -= share
        floats(plan.totals)[first + row] = total
        floats(plan.gaps)[first + row] = top - logits[label]


@compiled
def _update(width: Any, wide: Any, plan: Any, layer: Any, count: Any) -> None:
    """Move a layer's weights against their gradient, panel by panel."""
    many = layer.vectors // len(wide)
    for panel in range(many):
        _update_panel(width, wide, plan, layer, count, panel * len(wide))
    for vector in range(many * len(wide), layer.vectors):
        _update_panel(width, ONE, plan, layer, count, vector)


@inlined
def _update_panel(width: Any, columns: Any, plan: Any, layer: Any, count: Any, vector: Any) -> None:
    whole = layer.depth // len(FOUR) * len(FOUR)
    for k in range(0, whole, len(FOUR)):
        _update_rows(width, FOUR, columns, plan, layer, layer.rows, 4 * k, count, vector, k)
    for k in range(whole, layer.depth + layer.biased):
        table, offset = (layer.rows, 4 * k) if k < layer.depth else (plan.ones, 0)
        _update_rows(width, ONE, columns, plan, layer, table, offset, count, vector, k)


@inlined
def _update_rows(
    width: Any,
    inputs: Any,
    columns: Any,
    plan: Any,
    layer: Any,
    table: Any,
    offset: Any,
    count: Any,
    vector: Any,
    k: Any,
) -> None:
    place = vector * (layer.depth + 1) + k * len(columns)
    kept = layer.kept + place * max(1, len(width) // 8) if layer.kept else 0
    update_tile(
        *(width, inputs, columns, table, count, offset),
        *(layer.slopes + 4 * len(width) * vector, 4 * len(width) * layer.vectors),
        *(layer.weights + 4 * len(width) * place, kept, layer.velocity, layer.anchor, layer.squares),
        *(plan.rate, plan.momentum, plan.ahead, plan.pull),
    )
