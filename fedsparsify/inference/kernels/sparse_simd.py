"""The sparse convolution's vector code: one output channel of a tile, along a stream of weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, I32, I64, Emitter, Values, grid, sides
from ...ops.hardswish import Hardswish

POOLED, HARDSWISH = 2, 3  # how the last visit of a channel ends; 1: neither
IN_FLIGHT = 8  # additions under way at a time that hide the latency of one


class Tile(NamedTuple):
    """Where a channel's outputs go, and what becomes of the largest of 2 × 2, where they go there instead."""

    address: Any
    row: Any  # bytes from a row to the next
    height: int
    breadth: int
    scale: Any
    shift: Any


def begin(e: Emitter, first: Any, bias: Any, scratch: Values) -> Values:
    """Sums at the start of a visit: the bias in a channel's first one, else what was kept in `scratch`."""
    return e.either(first, lambda: [e.splat(bias)] * len(scratch), lambda: [e.load(address) for address in scratch])


def end(e: Emitter, last: Any, sums: Values, scratch: Values, tile: Tile, low: Any, high: Any) -> None:
    """Sums at the end of a visit: clamped and stored in a channel's last one, else (`last` is 0) kept in `scratch`.

    POOLED: only the largest of 2 × 2 sums go to their addresses, scaled and shifted. HARDSWISH: of what was clamped.
    """
    bounds, step = (e.splat(low), e.splat(high)), ir.Constant(I64, e.bytes)

    def whole(then: Any = lambda e, value: value) -> Values:
        addresses = grid(e, tile.address, tile.row, step, tile.height, tile.breadth)
        for value, address in zip(sums, addresses, strict=True):
            e.store(then(e, e.clamp(value, *bounds)), address)
        return []

    def pooled() -> Values:
        addresses = grid(e, tile.address, tile.row, step, tile.height // 2, tile.breadth // 2)
        scale, shift = e.splat(tile.scale), e.splat(tile.shift)
        for value, address in zip(e.largest(sums, tile.breadth), addresses, strict=True):
            e.store(e.fma(e.clamp(value, *bounds), scale, shift), address)
        return []

    def finished() -> Values:
        even = tile.height % 2 == tile.breadth % 2 == 0
        others = (lambda: e.either(ends_as(e, last, POOLED), pooled, whole)) if even else whole
        return e.either(ends_as(e, last, HARDSWISH), lambda: whole(Hardswish.vector), others)

    def keep() -> Values:
        for total, address in zip(sums, scratch, strict=True):
            e.store(total, address)
        return []

    e.either(last, finished, keep)


def ends_as(e: Emitter, last: Any, way: int) -> Any:
    """Whether a visit ends in a way, as an integer."""
    return e.builder.zext(e.builder.icmp_signed("==", last, ir.Constant(I64, way)), I64)


def total_of(e: Emitter, sums: Values, tile: int) -> Values:
    """The sum of several sets of sums, by halves, so that few additions wait for each other."""
    while len(sums) > tile:
        half = len(sums) // 2
        sums = [e.builder.fadd(a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
    return sums


@intrinsic
def sparse_tile(  # type: ignore[no-untyped-def]
    _, width, rows, columns, strided, x, row, column, stream, partial, first, last, bias, out, out_row, low, high, a, b
):
    """One output channel of a rows × columns tile, over one visit of the stream (see weight_streams.sparse_stream).

    Starts from the bias if `first`, else from `partial`; ends as `end` says, in `out` or in `partial`;
    a and b scale and shift what a pool takes.
    `strided` is a tuple of two where inputs of neighbouring outputs do not lie side by side; then there are no pairs.
    Returns the address after the visit.
    """
    lanes, height, breadth, spacing = sides(width, rows, columns, strided)
    tile = height * breadth
    sets = max(1, IN_FLIGHT // tile)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, _, x, row, column, stream, partial, first, last, bias, out, out_row, low, high, a, b = args
        e = Emitter(builder, lanes)
        if spacing == 1:
            column = ir.Constant(I64, e.bytes)  # part of the instructions, which makes them a tenth faster
        scratch = [e.at(partial, t * e.bytes) for t in range(tile)]
        counts = [builder.zext(e.load(e.at(stream, k * 4), I32), I64) for k in range(3)]
        stream = e.at(stream, 12)

        def add(sums: Values, at: Any) -> Values:
            """One weight and the offset of its input, read as one word, as loads are what it waits for."""
            word = e.load(at, I64)
            weight = e.splat(builder.bitcast(builder.trunc(word, I32), F32))
            base = builder.add(x, builder.ashr(word, ir.Constant(I64, 32)))
            cells = grid(e, base, row, column, height, breadth)
            return [e.fma(weight, e.load(cell), total) for cell, total in zip(cells, sums, strict=True)]

        def add_pair(state: Values, right: int, below: int) -> Values:
            """Two weights that are neighbours, to the right or below: most inputs serve both."""
            *sums, at = state
            weights = [e.splat(e.load(e.at(at, k * 4), F32)) for k in range(2)]
            base = builder.add(x, builder.sext(e.load(e.at(at, 8), I32), I64))
            cells = iter(grid(e, base, row, column, height + below, breadth + right))
            for i in range(height + below):
                for j in range(breadth + right):
                    value = e.load(next(cells))
                    if i < height and j < breadth:
                        sums[i * breadth + j] = e.fma(weights[0], value, sums[i * breadth + j])
                    if i >= below and j >= right:
                        t = (i - below) * breadth + j - right
                        sums[t] = e.fma(weights[1], value, sums[t])
            return [*sums, e.at(at, 12)]

        def several(state: Values) -> Values:
            *sums, at = state
            if sets == IN_FLIGHT:  # a cache line of weights
                e.prefetch_ahead(at)
            done: Values = []
            for k in range(sets):
                done += add(sums[k * tile : (k + 1) * tile], e.at(at, k * 8))
            return [*done, e.at(at, sets * 8)]

        sums = begin(e, first, bias, scratch)
        more = [e.constant(0.0)] * (tile * (sets - 1))
        amount = ir.Constant(I64, sets)
        *sums, stream = e.loop(builder.udiv(counts[0], amount), [*sums, *more, stream], several)
        state = [*total_of(e, sums, tile), stream]
        if sets > 1:
            rest = builder.urem(counts[0], amount)
            state = e.loop(rest, state, lambda s: [*add(s[:-1], s[-1]), e.at(s[-1], 8)])
        if height > 1 and spacing == 1:  # smaller tiles gain nothing from pairs
            state = e.loop(counts[1], state, lambda s: add_pair(s, 1, 0))
            state = e.loop(counts[2], state, lambda s: add_pair(s, 0, 1))
        *sums, stream = state
        end(e, last, sums, scratch, Tile(out, out_row, height, breadth, a, b), low, high)
        return stream

    i64, f32 = types.int64, types.float32
    numbers = (i64, i64, i64, i64, i64, i64, i64, f32, i64, i64, f32, f32, f32, f32)
    return i64(width, rows, columns, strided, *numbers), generate
