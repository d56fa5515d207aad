"""An epoch of a perceptron's training on one core, compiled for one width of vectors.

The weights of a model stay in the core's second-level cache throughout. Gradients of weights are never stored: a tile
of a weight takes its SGD step as soon as its gradient has been summed in registers.

In: the address of an `EPOCH` record, and an order of samples. Out: the weights, changed in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype

from ...native.compiled import compiled, inlined
from ...native.exponential import exponential
from ...native.pointers import floats, longs, seen_as
from ...native.simd import transpose
from .layers import EPOCH, LAYER, PRODUCT, ROWS, panel_vectors
from .simd import product_tile, update_tile

ONE, FOUR = (0,), (0,) * 4
HEIGHT = (0,) * ROWS
BLOCK = 96  # inputs whose weights, in a panel, stay in the first-level cache for all rows of a batch
LAYER_BYTES, PRODUCT_BYTES = LAYER.itemsize, PRODUCT.itemsize
f32 = np.float32
layer_at, product_at, epoch_at = (seen_as(from_dtype(record)) for record in (LAYER, PRODUCT, EPOCH))


def entries(lanes: int) -> list[Any]:
    """The function that Python calls, for one width of vectors."""
    width, wide = (0,) * lanes, (0,) * panel_vectors(lanes)

    def trained(epoch: Any, order: Any, samples: Any) -> None:
        _epoch(width, wide, epoch_at(epoch), order, samples)

    return [trained]


@inlined
def _epoch(width: Any, wide: Any, epoch: Any, order: Any, samples: Any) -> None:
    """Train on the samples, batch by batch, in the given order."""
    for number in range(-(-samples // epoch.batch)):  # a range with a step would make numba add a check for zero
        first = number * epoch.batch
        count = min(epoch.batch, samples - first)
        rows = -(-count // ROWS) * ROWS
        _find_rows(epoch, order + 8 * first, count, rows)
        for k in range(epoch.count):
            _multiply(width, wide, product_at(epoch.forward + k * PRODUCT_BYTES), rows)
        _loss(width, epoch, order, first, count)
        for k in range(epoch.count - 1, -1, -1):
            layer = layer_at(epoch.layers + k * LAYER_BYTES)
            if k > 0:
                _transpose(width, wide, layer)
                _multiply(width, wide, product_at(epoch.backward + k * PRODUCT_BYTES), rows)
            _update(width, wide, epoch, layer, count, floats(epoch.rates)[number])


@inlined
def _find_rows(epoch: Any, order: Any, count: Any, rows: Any) -> None:
    """The addresses of a batch's samples; rows beyond the batch repeat the first, and have no effect."""
    table, picked = longs(layer_at(epoch.layers).rows), longs(order)
    for row in range(rows):
        table[row] = epoch.samples + picked[row if row < count else 0] * epoch.stride


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
            start, start_step = weights + op.start * across, 0
            if k > 0:
                start, start_step = op.out + at, step
            end, relu_out = k + count == op.depth, op.relu_out + at if op.relu_out else 0
            product_tile(
                *(width, HEIGHT, columns, op.rows + 8 * row, 4 * k, weights + k * across, count, start, start_step),
                *(end, op.floor, relu_out, op.out + at, step),
            )


@compiled
def _transpose(width: Any, wide: Any, layer: Any) -> None:
    """The transposed weights, in panels too."""
    lanes, blocks = len(width), layer.depth // len(width)
    for v in range(layer.vectors):
        source, across = _column(width, wide, layer.vectors, layer.depth + 1, v)
        for i in range(blocks):
            target, target_across = _column(width, wide, blocks, layer.vectors * lanes + 1, i)
            target += layer.transposed + v * lanes * target_across
            transpose(width, target, target_across, layer.weights + source + i * lanes * across, across)


@inlined
def _column(width: Any, wide: Any, vectors: Any, rows: Any, vector: Any) -> Any:
    """Where a vector of outputs begins in panels of `rows` rows, and the bytes from one row to the next."""
    many = len(wide) if vector < vectors // len(wide) * len(wide) else 1
    inside = vector % many
    return 4 * len(width) * ((vector - inside) * rows + inside), 4 * len(width) * many


@compiled
def _loss(width: Any, epoch: Any, order: Any, first: Any, count: Any) -> None:
    """Softmax and cross entropy: the gradients of a batch's logits, and the terms of its losses."""
    last = epoch.count - 1
    layer, out = layer_at(epoch.layers + last * LAYER_BYTES), product_at(epoch.forward + last * PRODUCT_BYTES).out
    share, size = f32(1) / f32(count), 4 * len(width) * layer.vectors
    for row in range(count):
        logits, gradients = floats(out + row * size), floats(layer.gradients + row * size)
        top, total = logits[0], f32(0)
        for c in range(layer.outputs):
            top = max(top, logits[c])
        for c in range(layer.outputs):
            gradients[c] = exponential(logits[c] - top)
        for c in range(layer.outputs):
            total += gradients[c]
        factor, label = share / total, longs(epoch.labels)[longs(order)[first + row]]
        for c in range(layer.outputs):
            gradients[c] *= factor
        margin = top - logits[label]
        if epoch.smoothing > 0:
            spread = share * epoch.smoothing / f32(layer.outputs)
            mean = f32(0)
            for c in range(layer.outputs):
                gradients[c] -= spread
                mean += top - logits[c]
            margin += epoch.smoothing * (mean / f32(layer.outputs) - margin)
        gradients[label] -= share * (f32(1) - epoch.smoothing)
        floats(epoch.exp_sums)[first + row] = total
        floats(epoch.margins)[first + row] = margin


@compiled
def _update(width: Any, wide: Any, epoch: Any, layer: Any, count: Any, lr: Any) -> None:
    """One SGD step of a layer's weights, panel by panel."""
    many = layer.vectors // len(wide)
    for panel in range(many):
        _update_panel(width, wide, epoch, layer, count, lr, panel * len(wide))
    for vector in range(many * len(wide), layer.vectors):
        _update_panel(width, ONE, epoch, layer, count, lr, vector)


@inlined
def _update_panel(width: Any, columns: Any, epoch: Any, layer: Any, count: Any, lr: Any, vector: Any) -> None:
    whole = layer.depth // len(FOUR) * len(FOUR)
    for k in range(0, whole, len(FOUR)):
        _update_rows(width, FOUR, columns, epoch, layer, layer.rows, 4 * k, count, lr, vector, k)
    for k in range(whole, layer.depth + layer.biased):
        table, offset = (layer.rows, 4 * k) if k < layer.depth else (epoch.ones, 0)
        _update_rows(width, ONE, columns, epoch, layer, table, offset, count, lr, vector, k)


@inlined
def _update_rows(
    width: Any,
    inputs: Any,
    columns: Any,
    epoch: Any,
    layer: Any,
    table: Any,
    offset: Any,
    count: Any,
    lr: Any,
    vector: Any,
    k: Any,
) -> None:
    place = vector * (layer.depth + 1) + k * len(columns)
    kept = layer.kept + place * max(1, len(width) // 8) if layer.kept else 0
    update_tile(
        *(width, inputs, columns, table, count, offset),
        *(layer.gradients + 4 * len(width) * vector, 4 * len(width) * layer.vectors),
        *(layer.weights + 4 * len(width) * place, kept, layer.velocity, layer.anchor, layer.linear),
        *(layer.squares, epoch.decays, lr, epoch.momentum, epoch.nesterov, epoch.prox, epoch.decay),
    )
