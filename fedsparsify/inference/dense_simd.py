"""Vector code for layers that have kept most of their weights: a register-tiled product, and Winograd's transforms.

Winograd F(4 × 4, 3 × 3): a tile of 6 × 6 inputs becomes 36 frequencies, each layer is 36 small products, and a tile of
4 × 4 outputs comes back; a quarter of the multiplications (Lavin and Gray, 2016).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..native.simd import F32, FLOAT_BYTES, I32, I64, Emitter, Values, grid, sides
from .operations import FREQUENCIES


@intrinsic
def dense_tile(  # type: ignore[no-untyped-def]
    _, width, outputs, vectors, x, column, offsets, weights, depth, bias, out, out_channel, low, high
):
    """Some output channels by some vectors: sums of weight · input over `depth` inputs at byte offsets, clamped.

    The weights lie as (depth, outputs); a bias address of 0 means none.
    """
    lanes, height, breadth = sides(width, outputs, vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, x, column, offsets, weights, depth, bias, out, out_channel, low, high = args
        e = Emitter(builder, lanes)

        def body(state: Values) -> Values:
            *sums, at, offset = state
            cell = builder.add(x, builder.sext(e.load(offset, I32), I64))
            values: Values = []
            for _ in range(breadth):
                values.append(e.load(cell))
                cell = builder.add(cell, column)
            for o in range(height):
                weight = e.splat(e.load(e.at(at, o * FLOAT_BYTES), F32))
                for j, value in enumerate(values):
                    sums[o * breadth + j] = e.fma(weight, value, sums[o * breadth + j])
            return [*sums, e.at(at, height * FLOAT_BYTES), e.at(offset, 4)]

        def biased() -> Values:
            starts = [e.splat(e.load(e.at(bias, o * FLOAT_BYTES), F32)) for o in range(height)]
            return [start for start in starts for _ in range(breadth)]

        sums = e.either(bias, biased, lambda: [e.constant(0.0)] * (height * breadth))
        sums = e.loop(depth, [*sums, weights, offsets], body)[:-2]
        bounds = e.splat(low), e.splat(high)
        places = grid(e, out, out_channel, ir.Constant(I64, e.bytes), height, breadth)
        for total, place in zip(sums, places, strict=True):
            e.store(e.clamp(total, *bounds), place)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, outputs, vectors, *[i64] * 8, f32, f32), generate


def _into_frequencies(e: Emitter, t: Values) -> Values:
    """Six values along a line → six frequencies."""
    b = e.builder
    four, five, two = e.constant(-4.0), e.constant(-5.0), e.constant(2.0)
    p, q = e.fma(four, t[2], t[4]), e.fma(four, t[1], t[3])
    r, u = b.fsub(t[4], t[2]), b.fmul(two, b.fsub(t[3], t[1]))
    ends = [e.fma(e.constant(4.0), t[k], e.fma(five, t[k + 2], t[k + 4])) for k in range(2)]
    return [ends[0], b.fadd(p, q), b.fsub(p, q), b.fadd(r, u), b.fsub(r, u), ends[1]]


def _from_frequencies(e: Emitter, m: Values) -> Values:
    """Six frequencies along a line → four values."""
    b = e.builder
    s, d = b.fadd(m[1], m[2]), b.fsub(m[1], m[2])
    u, v = b.fadd(m[3], m[4]), b.fsub(m[3], m[4])
    last = b.fadd(e.fma(e.constant(8.0), v, d), m[5])
    return [b.fadd(m[0], b.fadd(s, u)), e.fma(e.constant(2.0), v, d), e.fma(e.constant(4.0), u, s), last]


def _both_ways(transform: Any, e: Emitter, square: list[Values]) -> list[Values]:
    """A transform along the columns, then along the rows."""
    columns = [transform(e, list(column)) for column in zip(*square, strict=True)]
    return [transform(e, list(row)) for row in zip(*columns, strict=True)]


@intrinsic
def winograd_in(_, width, x, row, out, step):  # type: ignore[no-untyped-def]
    """A tile of 6 × 6 input vectors as 36 frequencies, `step` bytes apart."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, row, out, step = args
        e = Emitter(builder, lanes)
        cells = [e.load(cell) for cell in grid(e, x, row, ir.Constant(I64, e.bytes), 6, 6)]
        for line in _both_ways(_into_frequencies, e, [cells[k : k + 6] for k in range(0, 36, 6)]):
            for value in line:
                e.store(value, out)
                out = builder.add(out, step)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, i64, i64, i64, i64), generate


@intrinsic
def winograd_out(_, width, sums, step, bias, out, row, low, high):  # type: ignore[no-untyped-def]
    """36 frequencies, `step` bytes apart, as a tile of 4 × 4 outputs, plus bias, clamped."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, sums, step, bias, out, row, low, high = args
        e = Emitter(builder, lanes)
        values: Values = []
        for _ in range(FREQUENCIES):
            values.append(e.load(sums))
            sums = builder.add(sums, step)
        start, bounds = e.splat(bias), (e.splat(low), e.splat(high))
        lines = _both_ways(_from_frequencies, e, [values[k : k + 6] for k in range(0, 36, 6)])
        places = grid(e, out, row, ir.Constant(I64, e.bytes), 4, 4)
        for value, place in zip((v for line in lines for v in line), places, strict=True):
            e.store(e.clamp(builder.fadd(value, start), *bounds), place)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, i64, i64, f32, i64, i64, f32, f32), generate
