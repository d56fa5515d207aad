"""An epoch of a perceptron's training on one core, compiled for one width of vectors.

The weights of a model stay in the core's second-level cache throughout; gradients are never stored: each tile of a
weight is moved as soon as its gradient has been summed up in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype

from ..native.compiled import compiled, inlined
from ..native.exponential import exponential
from ..native.memory import floats, longs, seen_as
from ..native.simd import transpose
from .cpu_layers import LAYER, PLAN, ROWS, wide_at
from .cpu_simd import product_tile, update_tile

ONE, FOUR = (0,), (0,) * 4
HEIGHT = (0,) * ROWS
BLOCK = 96  # inputs whose weights, in a panel, stay in the nearest cache while all rows of a batch meet them
LAYER_BYTES = LAYER.itemsize
f32 = np.float32
layer_at = seen_as(from_dtype(LAYER))
plan_at = seen_as(from_dtype(PLAN))


def entries(lanes: int) -> list[Any]:
    """The function that Python calls, for one width of vectors."""
    width, wide = (0,) * lanes, (0,) * wide_at(lanes)

    def trained(plan: Any, order: Any, samples: Any) -> None:
        epoch(width, wide, plan, order, samples)

    return [trained]


@compiled
def epoch(width: Any, wide: Any, address: Any, order: Any, samples: Any) -> None:
    """Train on some samples, batch by batch, in their order."""
    plan = plan_at(address)
    last = plan.layers + (plan.count - 1) * LAYER_BYTES
    for first in range(0, samples, plan.batch):
        count = min(plan.batch, samples - first)
        rows = -(-count // ROWS) * ROWS
        _find(plan, order + 8 * first, count, rows)
        for k in range(plan.count):
            layer = layer_at(plan.layers + k * LAYER_BYTES)
            low = f32(0) if layer.bent else f32(-np.inf)
            depth = layer.depth
            _multiply(
                width, wide, layer.inputs, rows, layer.weights, depth, depth, layer.vectors, low, 0, layer.out
            )
        _loss(width, layer_at(last), plan.labels, order, first, count, plan.totals, plan.gaps)
        for k in range(plan.count - 1, -1, -1):
            layer = layer_at(plan.layers + k * LAYER_BYTES)
            if k > 0:
                before = layer_at(plan.layers + (k - 1) * LAYER_BYTES)
                _turn(width, wide, layer.weights, layer.depth, layer.vectors, layer.turned)
                gate = before.out if before.bent else 0
                spare = layer.vectors * len(width)
                _multiply(
                    *(width, wide, layer.slope_rows, rows, layer.turned, layer.outputs, spare, before.vectors),
                    *(f32(-np.inf), gate, before.slopes),
                )
            _update(width, wide, layer, count, plan.ones, plan.rate)


@inlined
def _find(plan: Any, order: Any, count: Any, rows: Any) -> None:
    """The addresses of a batch's samples; rows that are left over repeat the first, and come to nothing."""
    table, picked = longs(layer_at(plan.layers).inputs), longs(order)
    for row in range(rows):
        table[row] = plan.samples + picked[row if row < count else 0] * plan.stride


@compiled
def _multiply(
    width: Any,
    wide: Any,
    table: Any,
    rows: Any,
    weights: Any,
    depth: Any,
    start: Any,
    vectors: Any,
    low: Any,
    gate: Any,
    out: Any,
) -> None:
    """Rows times panels, which begin from their row `start`."""
    step, done = 4 * len(width) * vectors, 0
    while done + len(wide) <= vectors:
        _panel(width, wide, table, rows, weights, depth, start, low, gate, out, step, done)
        done += len(wide)
    while done < vectors:
        _panel(width, ONE, table, rows, weights, depth, start, low, gate, out, step, done)
        done += 1


@compiled
def _panel(
    width: Any,
    columns: Any,
    table: Any,
    rows: Any,
    weights: Any,
    depth: Any,
    start: Any,
    low: Any,
    gate: Any,
    out: Any,
    step: Any,
    done: Any,
) -> None:
    vector = 4 * len(width)
    across = len(columns) * vector
    weights += done * (start + 1) * vector
    for k in range(0, depth, BLOCK):
        count = min(BLOCK, depth - k)
        end = k + count == depth
        for row in range(0, rows, ROWS):
            at = done * vector + row * step
            begin, begin_step = weights + start * across, 0
            if k > 0:
                begin, begin_step = out + at, step
            behind = gate + at if gate else 0
            product_tile(
                *(width, HEIGHT, columns, table + 8 * row, 4 * k, weights + k * across, count, begin, begin_step),
                *(end, low, behind, out + at, step),
            )


@compiled
def _turn(width: Any, wide: Any, weights: Any, depth: Any, vectors: Any, turned: Any) -> None:
    """The transposed weights, in panels too."""
    lanes = len(width)
    for v in range(vectors):
        source, across = _column(width, wide, vectors, depth + 1, v)
        for i in range(depth // lanes):
            target, target_across = _column(width, wide, depth // lanes, vectors * lanes + 1, i)
            target += turned + v * lanes * target_across
            transpose(width, target, target_across, weights + source + i * lanes * across, across)


@compiled
def _column(width: Any, wide: Any, vectors: Any, rows: Any, vector: Any) -> Any:
    """Where a vector of outputs begins in panels of so many rows, and the bytes from a row to the next."""
    many = len(wide) if vector < vectors // len(wide) * len(wide) else 1
    inside = vector % many
    return 4 * len(width) * ((vector - inside) * rows + inside), 4 * len(width) * many


@compiled
def _loss(
    width: Any, layer: Any, labels: Any, order: Any, first: Any, count: Any, totals: Any, gaps: Any
) -> None:
    """Softmax and cross entropy: the gradient in the logits of a batch, and what its losses are made of."""
    share, size = f32(1) / f32(count), 4 * len(width) * layer.vectors
    for row in range(count):
        logits, slopes = floats(layer.out + row * size), floats(layer.slopes + row * size)
        top, total = logits[0], f32(0)
        for c in range(layer.outputs):
            top = max(top, logits[c])
        for c in range(layer.outputs):
            slopes[c] = exponential(logits[c] - top)
        for c in range(layer.outputs):
            total += slopes[c]
        factor, label = share / total, longs(labels)[longs(order)[first + row]]
        for c in range(layer.outputs):
            slopes[c] *= factor
        slopes[label] -= share
        floats(totals)[first + row] = total
        floats(gaps)[first + row] = top - logits[label]


@compiled
def _update(width: Any, wide: Any, layer: Any, count: Any, ones: Any, rate: Any) -> None:
    """Move a layer's weights against their gradient."""
    done = 0
    while done + len(wide) <= layer.vectors:
        _update_panel(width, wide, layer, count, ones, rate, done)
        done += len(wide)
    while done < layer.vectors:
        _update_panel(width, ONE, layer, count, ones, rate, done)
        done += 1


@compiled
def _update_panel(width: Any, columns: Any, layer: Any, count: Any, ones: Any, rate: Any, done: Any) -> None:
    vector = 4 * len(width)
    across, step, slopes = len(columns) * vector, vector * layer.vectors, layer.slopes + done * vector
    weights = layer.weights + done * (layer.depth + 1) * vector
    kept = layer.kept + done * (layer.depth + 1) * _flag_bytes(width) if layer.kept else 0
    flags = len(columns) * _flag_bytes(width) if kept else 0
    whole = layer.depth // len(FOUR) * len(FOUR)
    for k in range(0, whole, len(FOUR)):
        update_tile(
            *(width, FOUR, columns, layer.inputs, count, 4 * k, slopes, step, weights + k * across, rate),
            kept + k * flags,
        )
    for k in range(whole, layer.depth):
        update_tile(
            *(width, ONE, columns, layer.inputs, count, 4 * k, slopes, step, weights + k * across, rate),
            kept + k * flags,
        )
    if layer.biased:
        place = weights + layer.depth * across
        update_tile(width, ONE, columns, ones, count, 0, slopes, step, place, rate, kept + layer.depth * flags)


@inlined
def _flag_bytes(width: Any) -> Any:
    return max(1, len(width) // 8)
