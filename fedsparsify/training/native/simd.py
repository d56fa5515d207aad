"""Vector code for training perceptrons: tiles of a product and of a weight's gradient that stay in registers.

Weights are stored in panels: several vectors of outputs wide, one row per input, and the bias as the last row. Rows of
inputs are found by a table of their addresses, so that samples are read from the data set without a copy.

The SGD rule is in `update_tile`; `tests/training/test_sgd_rule.py` holds it to the reference.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, FLOAT_BYTES, I64, Emitter, Values, grid, sides


def _addresses(e: Emitter, table: Any, count: int) -> Values:
    """The addresses of the first `count` rows of a table."""
    return [e.load(e.at(table, 8 * row), I64) for row in range(count)]


@intrinsic
def product_tile(  # type: ignore[no-untyped-def]
    _, width, rows, vectors, table, offset, weights, depth, start, start_step, end, floor, relu_out, out, out_step
):
    """A tile of rows by vectors: `start` + Σ input · weight over `depth` inputs from a byte offset on, into `out`.

    At the `end`, sums below `floor` become `floor`; or, with a `relu_out` (0: none), zero where that is not positive.
    """
    lanes, height, breadth = sides(width, rows, vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, table, offset, weights, depth, start, start_step, end, floor, relu_out, out, out_step = args
        e = Emitter(builder, lanes)
        step = ir.Constant(I64, e.bytes)
        places = grid(e, out, out_step, step, height, breadth)

        def add(state: Values) -> Values:
            *sums, at, weight = state
            values = [e.load(e.at(weight, j * e.bytes)) for j in range(breadth)]
            for i, base in enumerate(bases):
                x = e.splat(e.load(builder.add(base, at), F32))
                for j, value in enumerate(values):
                    sums[i * breadth + j] = e.fma(x, value, sums[i * breadth + j])
            return [*sums, e.at(at, FLOAT_BYTES), e.at(weight, breadth * e.bytes)]

        bases = _addresses(e, table, height)
        sums = [e.load(place) for place in grid(e, start, start_step, step, height, breadth)]
        sums = e.loop(depth, [*sums, offset, weights], add)[:-2]

        def clamped() -> Values:
            least = e.splat(floor)
            return [builder.select(builder.fcmp_ordered("<", value, least), least, value) for value in sums]

        def masked_by_relu() -> Values:
            masked = []
            for value, place in zip(sums, grid(e, relu_out, out_step, step, height, breadth), strict=True):
                active = builder.fcmp_ordered(">", e.load(place), e.constant(0.0))
                masked.append(builder.select(active, value, e.constant(0.0)))
            return masked

        sums = e.either(end, lambda: e.either(relu_out, masked_by_relu, clamped), lambda: sums)
        for value, place in zip(sums, places, strict=True):
            e.store(value, place)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, rows, vectors, *[i64] * 7, f32, *[i64] * 3), generate


@intrinsic
def update_tile(  # type: ignore[no-untyped-def]
    _,
    width,
    inputs,
    vectors,
    table,
    rows,
    offset,
    gradients,
    gradients_step,
    weights,
    kept,
    velocity,
    anchor,
    linear,
    squares,
    decays,
    lr,
    momentum,
    nesterov,
    prox,
    decay,
):
    """A tile of inputs by vectors of a weight: one step of SGD along Σ input · gradient over the rows.

    See `layers.LAYER` for what may be 0. A pruned weight is zero, and so is its part of the gradient.
    """
    lanes, height, breadth = sides(width, inputs, vectors)
    tile = height * breadth

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table, rows, offset, gradients, gradients_step, weights, kept, velocity, anchor, linear, *others = args[3:]
        e = Emitter(builder, lanes)
        squares, decays, *numbers = others
        lr, momentum, nesterov, prox, decay = (e.splat(number) for number in numbers)
        places = [e.at(weights, t * e.bytes) for t in range(tile)]

        def add(state: Values) -> Values:
            *sums, entry, gradient = state
            x = builder.add(e.load(entry, I64), offset)
            values = [e.load(e.at(gradient, j * e.bytes)) for j in range(breadth)]
            for i in range(height):
                factor = e.splat(e.load(e.at(x, i * FLOAT_BYTES), F32))
                for j, value in enumerate(values):
                    sums[i * breadth + j] = e.fma(factor, value, sums[i * breadth + j])
            return [*sums, e.at(entry, 8), builder.add(gradient, gradients_step)]

        def with_squares() -> Values:
            for gradient, place in zip(sums, places, strict=True):
                there = builder.add(place, squares)
                e.store(e.fma(gradient, gradient, e.load(there)), there)
            return sums

        def masked() -> Values:
            return [
                builder.select(_flags(e, e.at(kept, t * max(1, lanes // 8))), gradient, e.constant(0.0))
                for t, gradient in enumerate(sums)
            ]

        def with_prox() -> Values:
            return [
                e.fma(prox, builder.fsub(e.load(place), e.load(builder.add(place, anchor))), gradient)
                for gradient, place in zip(sums, places, strict=True)
            ]

        def with_linear() -> Values:
            return [
                builder.fadd(gradient, e.load(builder.add(place, linear)))
                for gradient, place in zip(sums, places, strict=True)
            ]

        def with_decay() -> Values:
            return [e.fma(decay, e.load(place), gradient) for gradient, place in zip(sums, places, strict=True)]

        def with_momentum() -> Values:
            steps = []
            for gradient, place in zip(sums, places, strict=True):
                there = builder.add(place, velocity)
                velocity_after = e.fma(momentum, e.load(there), gradient)
                e.store(velocity_after, there)
                ahead = builder.fcmp_ordered(">", nesterov, e.constant(0.0))
                steps.append(builder.select(ahead, e.fma(momentum, velocity_after, gradient), velocity_after))
            return steps

        sums = e.loop(rows, [*[e.constant(0.0)] * tile, table, gradients], add)[:-2]
        terms = (squares, with_squares), (kept, masked), (anchor, with_prox), (linear, with_linear)
        for given, change in (*terms, (decays, with_decay), (velocity, with_momentum)):
            sums = e.either(given, change, lambda: sums)  # noqa: B023
        for gradient, place in zip(sums, places, strict=True):
            e.store(e.fma(builder.fneg(lr), gradient, e.load(place)), place)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, inputs, vectors, *[i64] * 12, *[f32] * 5), generate


def _flags(e: Emitter, address: Any) -> Any:
    """Bits as a vector of booleans."""
    b, bits = e.builder, ir.IntType(max(8, e.lanes))
    loaded = b.load(b.inttoptr(address, bits.as_pointer()))
    loaded.align = 1
    return b.bitcast(
        loaded if e.lanes >= 8 else b.trunc(loaded, ir.IntType(e.lanes)), ir.VectorType(ir.IntType(1), e.lanes)
    )
