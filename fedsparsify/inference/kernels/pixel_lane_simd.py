"""Vector code for convolutions of one image with one vector per channel and one pixel per lane.

Whatever its position in the 3 × 3 kernel, a weight reads the same vector, moved by some lanes, and zero where that
leaves the image. So an entry holds a weight, the lanes to keep and an offset to any float: no halo is written, and all
channels fit the first-level cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, FLOAT_BYTES, I32, I64, Emitter, Values, sides
from .sparse_simd import IN_FLIGHT, total_of


@intrinsic
def pixel_lane_channel(_, width, x, stream, bias, out, low, high):  # type: ignore[no-untyped-def]
    """One output channel, along its part of a weight_streams.pixel_lane_stream; returns the address after it."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, stream, bias, out, low, high = args
        e = Emitter(builder, lanes)
        flags, chosen = ir.IntType(lanes), ir.VectorType(ir.IntType(1), lanes)
        count = builder.zext(e.load(stream, I32), I64)
        stream = e.at(stream, 4)

        def add(total: Any, at: Any) -> Any:
            """A weight, the offset of its input (16 bits), and which lanes to keep."""
            weight = e.splat(e.load(at, F32))
            word = e.load(e.at(at, 4), I32)
            kept = builder.bitcast(builder.trunc(builder.lshr(word, ir.Constant(I32, 16)), flags), chosen)
            offset = builder.sext(builder.trunc(word, ir.IntType(16)), I64)
            base = builder.add(x, builder.mul(offset, ir.Constant(I64, FLOAT_BYTES)))
            value = builder.select(kept, e.load_anywhere(base), e.constant(0.0))
            return e.fma(weight, value, total)

        def several(state: Values) -> Values:
            *sums, at = state
            e.prefetch_ahead(at)
            return [*(add(total, e.at(at, k * 8)) for k, total in enumerate(sums)), e.at(at, IN_FLIGHT * 8)]

        amount = ir.Constant(I64, IN_FLIGHT)
        sums = [e.splat(bias), *[e.constant(0.0)] * (IN_FLIGHT - 1)]
        *sums, stream = e.loop(builder.udiv(count, amount), [*sums, stream], several)
        state = [*total_of(e, sums, 1), stream]
        rest = builder.urem(count, amount)
        total, stream = e.loop(rest, state, lambda s: [add(*s), e.at(s[1], 8)])
        e.store(e.clamp(total, e.splat(low), e.splat(high)), out)
        return stream

    i64, f32 = types.int64, types.float32
    return i64(width, i64, i64, f32, i64, f32, f32), generate
