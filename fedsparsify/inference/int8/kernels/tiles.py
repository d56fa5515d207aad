"""Vector code of integer convolutions over the weights that are left: one output channel of a tile, along a stream."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....native.simd import I32, I64, Values, grid, sides
from .simd import IntEmitter

IN_FLIGHT = 8  # additions under way at a time that hide the latency of one
POSITIONS = 9  # of a kernel, in the stream for small images


class Outputs(NamedTuple):
    """Where a channel's outputs go, the range that they are clamped to, and factor and shift of a pool's results."""

    address: Any
    row: Any  # bytes from a row to the next
    height: int
    breadth: int
    low: Any
    high: Any
    factor: Any
    shift: Any


def begin(e: IntEmitter, first: Any, start: Any, scratch: Values) -> Values:
    """Sums at the start of a visit: the bias in a channel's first one, else what was kept in `scratch`."""
    return e.either(first, lambda: [e.word(start)] * len(scratch), lambda: [e.load(address) for address in scratch])


def end(e: IntEmitter, last: Any, sums: Values, scratch: Values, tile: Outputs) -> None:
    """Sums at the end of a visit: clamped and stored in a channel's last one, else kept in `scratch`.

    Where `last` is two, the largest of 2 × 2 sums go to their addresses, times the factor plus the shift.
    """
    step = ir.Constant(I64, e.bytes)
    low, high, factor, shift = (e.word(number) for number in (tile.low, tile.high, tile.factor, tile.shift))

    def whole() -> Values:
        addresses = grid(e, tile.address, tile.row, step, tile.height, tile.breadth)
        for value, address in zip(sums, addresses, strict=True):
            e.store(e.clamp(value, low, high), address)
        return []

    def pooled() -> Values:
        addresses = grid(e, tile.address, tile.row, step, tile.height // 2, tile.breadth // 2)
        for value, address in zip(e.largest(sums, tile.breadth), addresses, strict=True):
            e.store(e.builder.add(e.product(e.clamp(value, low, high), factor), shift), address)
        return []

    def finished() -> Values:
        even = tile.height % 2 == tile.breadth % 2 == 0
        return e.either(e.builder.sub(last, ir.Constant(I64, 1)), pooled, whole) if even else whole()

    def keep() -> Values:
        for total, address in zip(sums, scratch, strict=True):
            e.store(total, address)
        return []

    e.either(last, finished, keep)


def total_of(e: IntEmitter, sums: Values, tile: int) -> Values:
    """The sum of several sets of sums."""
    while len(sums) > tile:
        half = len(sums) // 2
        sums = [e.builder.add(a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
    return sums


@intrinsic
def int_tile(  # type: ignore[no-untyped-def]
    _, width, rows, columns, strided, x, row, column, stream, partial, first, last, start, out, out_row, low, high, a, b
):
    """One output channel of a rows × columns tile, over one visit of the stream (see streams.int_stream).

    As sparse_simd.sparse_tile does; all numbers are integers. Returns the address after the visit.
    """
    lanes, height, breadth, spacing = sides(width, rows, columns, strided)
    tile = height * breadth
    sets = max(1, IN_FLIGHT // tile)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, _, x, row, column, stream, partial, first, last, start, out, out_row, low, high, a, b = args
        e = IntEmitter(builder, lanes)
        if spacing == 1:
            column = ir.Constant(I64, e.bytes)
        scratch = [e.at(partial, t * e.bytes) for t in range(tile)]
        count = builder.zext(e.load(stream, I32), I64)
        stream = e.at(stream, 4)

        def add(sums: Values, at: Any) -> Values:
            """One weight, twice in 32 bits, and the offset of its input."""
            word = e.load(at, I64)
            weight = builder.bitcast(e.twice(builder.trunc(word, I32)), e.vector)
            base = builder.add(x, builder.ashr(word, ir.Constant(I64, 32)))
            cells = grid(e, base, row, column, height, breadth)
            products = (e.product(e.load(cell), weight) for cell in cells)
            return [builder.add(total, made) for total, made in zip(sums, products, strict=True)]

        def several(state: Values) -> Values:
            *sums, at = state
            if sets == IN_FLIGHT:
                e.prefetch_ahead(at)
            done: Values = []
            for k in range(sets):
                done += add(sums[k * tile : (k + 1) * tile], e.at(at, k * 8))
            return [*done, e.at(at, sets * 8)]

        sums = [*begin(e, first, start, scratch), *[e.constant(0)] * (tile * (sets - 1))]
        amount = ir.Constant(I64, sets)
        *sums, stream = e.loop(builder.udiv(count, amount), [*sums, stream], several)
        state = [*total_of(e, sums, tile), stream]
        if sets > 1:
            rest = builder.urem(count, amount)
            state = e.loop(rest, state, lambda s: [*add(s[:-1], s[-1]), e.at(s[-1], 8)])
        *sums, stream = state
        end(e, last, sums, scratch, Outputs(out, out_row, height, breadth, low, high, a, b))
        return stream

    i64 = types.int64
    return i64(width, rows, columns, strided, *[i64] * 14), generate


@intrinsic
def int_small_tile(  # type: ignore[no-untyped-def]
    _, width, rows, columns, x, row, stream, partial, first, last, start, out, out_row, low, high, a, b
):
    """One output channel of whole images, over one visit of the stream (see streams.int_small_stream).

    As small_simd.small_tile does; all numbers are integers. Returns the address after the visit.
    """
    lanes, height, breadth = sides(width, rows, columns)
    tile = height * breadth
    sets = 16 // tile

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, x, row, stream, partial, first, last, start, out, out_row, low, high, a, b = args
        e = IntEmitter(builder, lanes)
        scratch = [e.at(partial, t * e.bytes) for t in range(tile)]
        counts = [builder.zext(e.load(e.at(stream, k * 4), I32), I64) for k in range(POSITIONS)]
        sums = [*begin(e, first, start, scratch), *[e.constant(0)] * (tile * (sets - 1))]
        stream = e.at(stream, 4 * POSITIONS)
        for position, (down, right) in enumerate(product((-1, 0, 1), repeat=2)):
            begins = position % sets * tile

            def add(state: Values, down: int = down, right: int = right) -> Values:
                """One weight and the offset of its input channel."""
                *totals, at = state
                word = e.load(at, I64)
                weight = builder.bitcast(e.twice(builder.trunc(word, I32)), e.vector)
                base = builder.add(x, builder.ashr(word, ir.Constant(I64, 32)))
                cells = grid(e, base, row, ir.Constant(I64, e.bytes), height, breadth)
                for i, j in product(range(height), range(breadth)):
                    if 0 <= i + down < height and 0 <= j + right < breadth:
                        value = e.load(cells[(i + down) * breadth + j + right])
                        totals[i * breadth + j] = builder.add(totals[i * breadth + j], e.product(value, weight))
                return [*totals, e.at(at, 8)]

            part = slice(begins, begins + tile)
            *sums[part], stream = e.loop(counts[position], [*sums[part], stream], add)
        end(e, last, total_of(e, sums, tile), scratch, Outputs(out, out_row, height, breadth, low, high, a, b))
        return stream

    i64 = types.int64
    return i64(width, rows, columns, *[i64] * 13), generate
