"""Vector code of 1 × 1 convolutions: one output channel of vectors that lie end to end, along a stream of weights.

Whatever the shape of a block, its vectors are one line for a 1 × 1 convolution, so that tiles waste nothing at the ends
of rows. Outputs go to their places by a table, as the target may have a halo.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, I32, I64, Emitter, Values, sides
from ...ops.hardswish import Hardswish
from .sparse_simd import HARDSWISH, begin, ends_as


@intrinsic
def pointwise_tile(  # type: ignore[no-untyped-def]
    _, width, vectors, x, stream, partial, first, last, bias, out, places, low, high
):
    """One output channel of some vectors from x on, over one visit of the stream (see weight_streams.sparse_stream).

    Starts from the bias if `first`, else from `partial`; ends clamped at `out` plus the byte offsets in `places` if
    `last`, as `sparse_simd.end` says, else in `partial`. Returns the address after the visit.
    """
    lanes, count = sides(width, vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, x, stream, partial, first, last, bias, out, places, low, high = args
        e = Emitter(builder, lanes)
        scratch = [e.at(partial, k * e.bytes) for k in range(count)]
        weights = builder.zext(e.load(stream, I32), I64)

        def add(state: Values) -> Values:
            *sums, at = state
            word = e.load(at, I64)
            weight = e.splat(builder.bitcast(builder.trunc(word, I32), F32))
            base = builder.add(x, builder.ashr(word, ir.Constant(I64, 32)))
            made = [e.fma(weight, e.load(e.at(base, k * e.bytes)), total) for k, total in enumerate(sums)]
            return [*made, e.at(at, 8)]

        def stored(then: Any) -> Values:
            bounds = e.splat(low), e.splat(high)
            for k, total in enumerate(sums):
                place = builder.sext(e.load(e.at(places, 4 * k), I32), I64)
                e.store(then(e, e.clamp(total, *bounds)), builder.add(out, place))
            return []

        def finished() -> Values:
            activated = ends_as(e, last, HARDSWISH)
            return e.either(activated, lambda: stored(Hardswish.vector), lambda: stored(lambda _, value: value))

        def keep() -> Values:
            for total, address in zip(sums, scratch, strict=True):
                e.store(total, address)
            return []

        *sums, stream = e.loop(weights, [*begin(e, first, bias, scratch), e.at(stream, 12)], add)
        e.either(last, finished, keep)
        return stream

    i64, f32 = types.int64, types.float32
    return i64(width, vectors, i64, i64, i64, i64, i64, f32, i64, i64, f32, f32), generate
