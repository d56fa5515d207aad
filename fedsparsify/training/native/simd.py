"""Vector code for training perceptrons: tiles of a product and of a weight's gradient that stay in registers.

Weights lie in panels: some vectors of outputs wide, one row an input, and the bias as the last row. Rows of inputs are
found through a table of their addresses, so that samples are read where they lie in the data set.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, FLOAT_BYTES, I64, Emitter, Values, grid, sides


def _addresses(e: Emitter, table: Any, count: int) -> Values:
    """Some rows' addresses, from a table of them."""
    return [e.load(e.at(table, 8 * row), I64) for row in range(count)]


@intrinsic
def product_tile(  # type: ignore[no-untyped-def]
    _, width, rows, vectors, table, offset, weights, depth, start, start_step, end, low, gate, out, out_step
):
    """Some rows by some vectors: `start` + Σ input · weight over `depth` inputs from a byte offset on, into `out`.

    At the `end`, what is less than `low` becomes `low`; or, with a `gate` (0: none), zero where that is not positive.
    """
    lanes, height, breadth = sides(width, rows, vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, table, offset, weights, depth, start, start_step, end, low, gate, out, out_step = args
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

        def bent() -> Values:
            floor = e.splat(low)
            return [builder.select(builder.fcmp_ordered("<", value, floor), floor, value) for value in sums]

        def gated() -> Values:
            passed = []
            for value, place in zip(sums, grid(e, gate, out_step, step, height, breadth), strict=True):
                open = builder.fcmp_ordered(">", e.load(place), e.constant(0.0))
                passed.append(builder.select(open, value, e.constant(0.0)))
            return passed

        sums = e.either(end, lambda: e.either(gate, gated, bent), lambda: sums)
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
    slopes,
    slopes_step,
    weights,
    kept,
    velocity,
    anchor,
    squares,
    rate,
    momentum,
    ahead,
    pull,
):
    """Some inputs by some vectors of a weight: one step of SGD along Σ input · slope over the rows.

    See cpu_layers.LAYER for what may be 0. A pruned weight is zero, and so is its part of the gradient.
    """
    lanes, height, breadth = sides(width, inputs, vectors)
    tile = height * breadth

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table, rows, offset, slopes, slopes_step, weights, kept, velocity, anchor, squares, *numbers = args[3:]
        e = Emitter(builder, lanes)
        rate, momentum, ahead, pull = (e.splat(number) for number in numbers)
        places = [e.at(weights, t * e.bytes) for t in range(tile)]

        def add(state: Values) -> Values:
            *sums, entry, slope = state
            x = builder.add(e.load(entry, I64), offset)
            values = [e.load(e.at(slope, j * e.bytes)) for j in range(breadth)]
            for i in range(height):
                factor = e.splat(e.load(e.at(x, i * FLOAT_BYTES), F32))
                for j, value in enumerate(values):
                    sums[i * breadth + j] = e.fma(factor, value, sums[i * breadth + j])
            return [*sums, e.at(entry, 8), builder.add(slope, slopes_step)]

        def squared() -> Values:
            for slope, place in zip(sums, places, strict=True):
                there = builder.add(place, squares)
                e.store(e.fma(slope, slope, e.load(there)), there)
            return sums

        def masked() -> Values:
            return [
                builder.select(_flags(e, e.at(kept, t * max(1, lanes // 8))), slope, e.constant(0.0))
                for t, slope in enumerate(sums)
            ]

        def pulled() -> Values:
            return [
                e.fma(pull, builder.fsub(e.load(place), e.load(builder.add(place, anchor))), slope)
                for slope, place in zip(sums, places, strict=True)
            ]

        def carried() -> Values:
            steps = []
            for slope, place in zip(sums, places, strict=True):
                there = builder.add(place, velocity)
                speed = e.fma(momentum, e.load(there), slope)
                e.store(speed, there)
                nesterov = builder.fcmp_ordered(">", ahead, e.constant(0.0))
                steps.append(builder.select(nesterov, e.fma(momentum, speed, slope), speed))
            return steps

        sums = e.loop(rows, [*[e.constant(0.0)] * tile, table, slopes], add)[:-2]
        for given, change in ((squares, squared), (kept, masked), (anchor, pulled), (velocity, carried)):
            sums = e.either(given, change, lambda: sums)  # noqa: B023
        for slope, place in zip(sums, places, strict=True):
            e.store(e.fma(builder.fneg(rate), slope, e.load(place)), place)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, inputs, vectors, *[i64] * 10, *[f32] * 4), generate


def _flags(e: Emitter, address: Any) -> Any:
    """Bits as a vector of truths."""
    b, bits = e.builder, ir.IntType(max(8, e.lanes))
    loaded = b.load(b.inttoptr(address, bits.as_pointer()))
    loaded.align = 1
    return b.bitcast(
        loaded if e.lanes >= 8 else b.trunc(loaded, ir.IntType(e.lanes)), ir.VectorType(ir.IntType(1), e.lanes)
    )
