"""Vector code for layers that have kept most of their weights: a register-tiled product."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, FLOAT_BYTES, I32, I64, Emitter, Values, grid, sides


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
            e.prefetch_ahead(at)
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
        addresses = grid(e, out, out_channel, ir.Constant(I64, e.bytes), height, breadth)
        for total, address in zip(sums, addresses, strict=True):
            e.store(e.clamp(total, *bounds), address)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, outputs, vectors, *[i64] * 8, f32, f32), generate
