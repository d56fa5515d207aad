"""Vector code of squeeze-and-excite: sums of images, and products or sums of values."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from ...native.simd import Emitter, Values, sides

IN_FLIGHT = 4  # additions under way at a time


@intrinsic
def sum_vectors(_, width, target, source, row, rows, columns, mask):  # type: ignore[no-untyped-def]
    """The sum of a block's vectors; where `mask` is the address of a table, of the entries whose integer is not 0."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, rows, columns, mask = args
        e = Emitter(builder, lanes)
        nothing = e.constant(0.0)

        def total(masked: bool) -> Values:
            def along(state: Values) -> Values:
                at, kept, oldest, *sums = state
                value = builder.select(e.nonzero(kept), e.load(at), nothing) if masked else e.load(at)
                return [e.at(at, e.bytes), e.at(kept, e.bytes), *sums, builder.fadd(oldest, value)]

            def down(state: Values) -> Values:
                at, *rest = state
                return [builder.add(at, row), *e.loop(columns, [at, *rest], along)[1:]]

            _, _, a, b, c, d = e.loop(rows, [source, mask, *[nothing] * IN_FLIGHT], down)
            return [builder.fadd(builder.fadd(a, b), builder.fadd(c, d))]

        e.store(e.either(mask, lambda: total(True), lambda: total(False))[0], target)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, i64, i64, i64, i64, i64, i64), generate


@intrinsic
def combine_vectors(  # type: ignore[no-untyped-def]
    _, width, target, source, second, second_step, count, product, low, high
):
    """Products (or sums, without `product`) of vectors side by side and of those `second_step` bytes apart, clamped."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, second, second_step, count, product, low, high = args
        e = Emitter(builder, lanes)
        bounds = e.splat(low), e.splat(high)

        def each(combine: Any) -> Values:
            def along(state: Values) -> Values:
                to, a, b = state
                e.store(e.clamp(combine(e.load(a), e.load(b)), *bounds), to)
                return [e.at(to, e.bytes), e.at(a, e.bytes), builder.add(b, second_step)]

            e.loop(count, [target, source, second], along)
            return []

        e.either(product, lambda: each(builder.fmul), lambda: each(builder.fadd))
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, i64, i64, i64, i64, i64, i64, f32, f32), generate
