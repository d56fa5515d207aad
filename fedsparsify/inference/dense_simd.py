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
            e.ask_ahead(at)
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


def _low_frequencies(e: Emitter, t: Values) -> Values:
    """Six values along a line → the first three of six frequencies."""
    b = e.builder
    p, q = e.fma(e.constant(-4.0), t[2], t[4]), e.fma(e.constant(-4.0), t[1], t[3])
    end = e.fma(e.constant(4.0), b.fsub(t[0], t[2]), b.fsub(t[4], t[2]))
    return [end, b.fadd(p, q), b.fsub(p, q)]


def _high_frequencies(e: Emitter, t: Values) -> Values:
    """Six values along a line → the other three."""
    b = e.builder
    r, w = b.fsub(t[4], t[2]), b.fsub(t[3], t[1])
    end = e.fma(e.constant(-4.0), w, b.fsub(t[5], t[3]))
    return [e.fma(e.constant(2.0), w, r), e.fma(e.constant(-2.0), w, r), end]


def _from_frequencies(e: Emitter, m: Values) -> Values:
    """Six frequencies along a line → four values."""
    b = e.builder
    s, d = b.fadd(m[1], m[2]), b.fsub(m[1], m[2])
    u, v = b.fadd(m[3], m[4]), b.fsub(m[3], m[4])
    last = b.fadd(e.fma(e.constant(8.0), v, d), m[5])
    return [b.fadd(m[0], b.fadd(s, u)), e.fma(e.constant(2.0), v, d), e.fma(e.constant(4.0), u, s), last]


@intrinsic
def winograd_in(_, width, x, row, out, step):  # type: ignore[no-untyped-def]
    """A tile of 6 × 6 input vectors as 36 frequencies, `step` bytes apart; in two halves, which fit the registers."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, row, out, step = args
        e = Emitter(builder, lanes)
        cells = grid(e, x, row, ir.Constant(I64, e.bytes), 6, 6)
        for half in (_low_frequencies, _high_frequencies):
            columns = [half(e, [e.load(cell) for cell in cells[k::6]]) for k in range(6)]
            for line in zip(*columns, strict=True):
                for value in (*_low_frequencies(e, list(line)), *_high_frequencies(e, list(line))):
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
        cells: Values = [sums]
        for _ in range(FREQUENCIES - 1):
            cells.append(builder.add(cells[-1], step))
        start, bounds = e.splat(bias), (e.splat(low), e.splat(high))
        columns = [_from_frequencies(e, [e.load(cell) for cell in cells[k::6]]) for k in range(6)]
        lines = [_from_frequencies(e, list(line)) for line in zip(*columns, strict=True)]
        places = grid(e, out, row, ir.Constant(I64, e.bytes), 4, 4)
        for value, place in zip((v for line in lines for v in line), places, strict=True):
            e.store(e.clamp(builder.fadd(value, start), *bounds), place)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, i64, i64, f32, i64, i64, f32, f32), generate
