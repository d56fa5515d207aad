"""Vector code of convolutions: tiles of pixels whose sums, or whose gradients, stay in registers.

A tile has some rows and columns of vectors of one channel. A visit walks the part of a stream that belongs to one
channel: for each survivor, where it reads, in bytes from the tile's corner, and its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....native.lines import LINE_BYTES
from ....native.simd import F32, FLOAT_BYTES, I32, I64, Emitter, Values, sides
from .rows import ADD, MASKED, RELU, RELU_POOL, RELU_STREAMED, TILE_COLUMNS

BIT = ir.IntType(1)


def bit_bytes(lanes: int) -> int:
    """Bytes that hold one bit per lane."""
    return max(1, lanes // 8)


def store_bits(e: Emitter, flags: Any, address: Any) -> None:
    """A vector of booleans as bits."""
    b = e.builder
    word = b.bitcast(flags, ir.IntType(e.lanes))
    if e.lanes < 8:
        word = b.zext(word, ir.IntType(8))
    b.store(word, b.inttoptr(address, word.type.as_pointer())).align = 1


def load_bits(e: Emitter, address: Any) -> Any:
    """Bits as a vector of booleans."""
    b, word = e.builder, ir.IntType(max(8, e.lanes))
    loaded = b.load(b.inttoptr(address, word.as_pointer()))
    loaded.align = 1
    return b.bitcast(loaded if e.lanes >= 8 else b.trunc(loaded, ir.IntType(e.lanes)), ir.VectorType(BIT, e.lanes))


def larger_or_nan(e: Emitter, a: Any, b: Any) -> Any:
    """The larger of two in each lane, and NaN where either is."""
    take = e.builder.or_(e.builder.fcmp_ordered(">", b, a), e.builder.fcmp_unordered("uno", b, b))
    return e.builder.select(take, b, a)


def maximum(e: Emitter, a: Any, b: Any) -> Any:
    """The larger of two in each lane, and the second where either is a NaN: one instruction."""
    return e.builder.select(e.builder.fcmp_ordered(">", a, b), a, b)


def positive(e: Emitter, value: Any) -> Any:
    """Zero where a value is negative; a NaN stays a NaN."""
    return e.builder.select(e.builder.fcmp_ordered("<", value, e.constant(0.0)), e.constant(0.0), value)


def cells(e: Emitter, base: Any, row: Any, column: Any, rows: int, columns: int) -> Values:
    """Addresses of a tile's vectors, row by row; a `column` of None is one vector."""
    b, found = e.builder, []
    starts = [base]
    for _ in range(1, rows):
        starts.append(b.add(starts[-1], row))
    for start in starts:
        found.append(start)
        for j in range(1, columns):
            found.append(e.at(start, j * e.bytes) if column is None else b.add(found[-1], column))
    return found


def from_corner(e: Emitter, row: Any, column: Any, rows: int, columns: int) -> Any:
    """A function from a tile's corner to the addresses of its vectors, with the strides' multiples taken once."""
    b = e.builder
    down: Values = [None]
    for i in range(1, rows):
        down.append(row if i == 1 else b.mul(row, ir.Constant(I64, i)))
    right = None if column is None else [b.mul(column, ir.Constant(I64, j)) for j in range(columns)]

    def addresses(corner: Any) -> Values:
        found = []
        for offset in down:
            start = corner if offset is None else b.add(corner, offset)
            for j in range(columns):
                found.append(e.at(start, j * e.bytes) if right is None else b.add(start, right[j]))
        return found

    return addresses


def pair_inputs(
    e: Emitter, corner: Any, strides: tuple[Any, Any], shape: tuple[int, int], right: int, down: int
) -> Iterator[tuple[int, int, Any]]:
    """The inputs of a tile for two survivors, the second a pixel of the tile further; what they share is loaded once.

    Each comes with the survivor (0 or 1) and the pixel's number; row by row, so that few of them are in registers.
    """
    height, breadth = shape
    wide = breadth + right
    places = from_corner(e, *strides, height + down, wide)(corner)
    for i in range(height + down):
        values = [e.load(place) for place in places[i * wide : (i + 1) * wide]]
        for survivor, top, left in ((0, i, 0), (1, i - down, right)):
            for j in range(breadth) if 0 <= top < height else ():
                yield survivor, top * breadth + j, values[left + j]


def in_its_shape(e: Emitter, shape: Values, tall: int, make: Callable[[int, int, bool], None]) -> None:
    """Code of each shape of tile, and the branch to the one that the numbers `rows`, `columns` and `near` name."""
    b = e.builder
    rows, columns, near = shape

    def same(number: Any, value: int) -> Any:
        return b.zext(b.icmp_signed("==", number, ir.Constant(I64, value)), I64)

    def made(height: int, breadth: int, is_near: bool) -> Values:
        make(height, breadth, is_near)
        return []

    def of_height(height: int, is_near: bool) -> Values:
        def narrow() -> Values:
            return e.either(same(columns, 2), lambda: made(height, 2, is_near), lambda: made(height, 1, is_near))

        return e.either(same(columns, TILE_COLUMNS), lambda: made(height, TILE_COLUMNS, is_near), narrow)

    def of_any_height(is_near: bool) -> Values:
        def low() -> Values:
            return e.either(same(rows, 2), lambda: of_height(2, is_near), lambda: of_height(1, is_near))

        return low() if tall == 2 else e.either(same(rows, tall), lambda: of_height(tall, is_near), low)

    e.either(near, lambda: of_any_height(True), lambda: of_any_height(False))


def four_offsets(e: Emitter, address: Any) -> Values:
    """Four offsets of a stream, by two loads: products take nearly all that a core can load."""
    found = []
    for k in (0, 2):
        two = e.load(e.at(address, k * FLOAT_BYTES), I64)
        found += [e.builder.sext(e.builder.trunc(two, I32), I64), e.builder.ashr(two, ir.Constant(I64, 32))]
    return found


@intrinsic
def conv_visit(_, width, tall, numbers):  # type: ignore[no-untyped-def]
    """A tile of one channel: Σ weight · input over a part of a stream, from the bias on or from `sums`.

    The numbers: rows, columns, near; x, x_row, x_column; offsets, weights, count, by_four, beside, above; bias (its
    address, 0: none), first, last, sums; mode, y, y_row, y_column, bits, bits_row. The `count` survivors begin with so
    many pairs that read `beside` each other, and then so many that read one `above` the other; in tiles of full
    size, pairs load what they share once. Of the others, four at a time are taken with `by_four`. The `last` part ends
    as `mode` says; any other leaves its sums at `sums`. Tiles are as high as `tall`, 2 or 1, and 4, 2 or 1 wide; if not
    `near`, what neighbouring pixels of a row read are not neighbouring vectors.
    """
    lanes, highest = sides(width, tall)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = [builder.extract_value(args[2], k) for k in range(numbers.count)]
        e = Emitter(builder, lanes)
        in_its_shape(e, given[:3], highest, lambda *shape: _conv_visit(e, given[3:], highest, *shape))
        return context.get_dummy_value()

    return types.void(width, tall, numbers), generate


def _conv_visit(e: Emitter, given: Values, highest: int, height: int, breadth: int, is_near: bool) -> None:
    builder, lanes, size = e.builder, e.lanes, height * breadth
    x, x_row, x_column, offsets, weights, count, by_four, beside, above, bias, first, last, sums = given[:13]
    mode, y, y_row, y_column, bits, bits_row = given[13:]
    strides = x_row, None if is_near else x_column
    inputs = from_corner(e, *strides, height, breadth)

    def plus(tile: Values, offset: Any, factor: Any) -> Values:
        places = inputs(builder.add(x, offset))
        return [e.fma(factor, e.load(cell), sum) for sum, cell in zip(tile, places, strict=True)]

    def add(state: Values) -> Values:
        *tile, offset, weight = state
        tile = plus(tile, builder.sext(e.load(offset, I32), I64), e.splat(e.load(weight, F32)))
        return [*tile, e.at(offset, FLOAT_BYTES), e.at(weight, FLOAT_BYTES)]

    def plus_four(state: Values) -> Values:
        *tile, offset, weight = state
        factors = e.load_anywhere(weight, ir.VectorType(F32, 4))
        undefined = ir.Constant(factors.type, ir.Undefined)
        for k, number in enumerate(four_offsets(e, offset)):
            every = ir.Constant(ir.VectorType(I32, lanes), [k] * lanes)
            tile = plus(tile, number, builder.shuffle_vector(factors, undefined, every))
        return [*tile, e.at(offset, 4 * FLOAT_BYTES), e.at(weight, 4 * FLOAT_BYTES)]

    def plus_pair(right: int, down: int) -> Callable[[Values], Values]:
        def plus_both(state: Values) -> Values:
            *tile, offset, weight = state
            factors = [e.splat(e.load(e.at(weight, k * FLOAT_BYTES), F32)) for k in (0, 1)]
            corner = builder.add(x, builder.sext(e.load(offset, I32), I64))
            for second, t, value in pair_inputs(e, corner, strides, (height, breadth), right, down):
                tile[t] = e.fma(factors[second], value, tile[t])
            return [*tile, e.at(offset, 2 * FLOAT_BYTES), e.at(weight, 2 * FLOAT_BYTES)]

        return plus_both

    def begun() -> Values:
        return e.either(bias, lambda: [e.splat(e.load(bias, F32))], lambda: [e.constant(0.0)]) * size

    kept = [e.at(sums, t * e.bytes) for t in range(size)]
    tile = e.either(first, begun, lambda: [e.load(place) for place in kept])
    state = [*tile, offsets, weights]
    if breadth == TILE_COLUMNS and height == highest:
        state = e.loop(beside, state, plus_pair(1, 0))
        state = e.loop(above, state, plus_pair(0, 1))
        count = builder.sub(count, builder.shl(builder.add(beside, above), ir.Constant(I64, 1)))
    fours = builder.mul(builder.ashr(count, ir.Constant(I64, 2)), by_four)
    state = e.loop(fours, state, plus_four)
    tile = e.loop(builder.sub(count, builder.shl(fours, ir.Constant(I64, 2))), state, add)[:-2]

    def keep() -> Values:
        for value, place in zip(tile, kept, strict=True):
            e.store(value, place)
        return []

    def finish() -> Values:
        def chosen(number: int) -> Any:
            return builder.zext(builder.icmp_signed("==", mode, ir.Constant(I64, number)), I64)

        places = cells(e, y, y_row, y_column, height, breadth)
        words = cells(e, bits, bits_row, ir.Constant(I64, bit_bytes(lanes)), height, breadth)

        def store() -> Values:
            for value, place in zip(tile, places, strict=True):
                e.store(value, place)
            return []

        def added() -> Values:
            for value, place in zip(tile, places, strict=True):
                e.store(builder.fadd(value, e.load(place)), place)
            return []

        def relu(streamed: bool = False) -> Values:
            for value, place, word in zip(tile, places, words, strict=True):
                e.store(positive(e, value), place, streamed)
                store_bits(e, builder.fcmp_ordered(">", value, e.constant(0.0)), word)
            return []

        def masked() -> Values:
            for value, place, word in zip(tile, places, words, strict=True):
                e.store(builder.select(load_bits(e, word), value, e.constant(0.0)), place)
            return []

        def pooled() -> Values:
            if height % 2 or breadth % 2:
                return []  # never: a fused pool has even sides
            half = cells(e, y, y_row, y_column, height // 2, breadth // 2)
            four = cells(e, bits, bits_row, ir.Constant(I64, 4 * bit_bytes(lanes)), height // 2, breadth // 2)
            for k, (place, word) in enumerate(zip(half, four, strict=True)):
                corner = k // (breadth // 2) * 2 * breadth + k % (breadth // 2) * 2
                window = [tile[corner + i * breadth + j] for i in range(2) for j in range(2)]
                store_window(e, window, place, word)
            return []

        modes = [(ADD, added), (RELU, relu), (RELU_POOL, pooled), (MASKED, masked)]
        modes.append((RELU_STREAMED, lambda: relu(True)))
        end: Any = store
        for number, make in modes:
            end = (lambda n, m, rest: lambda: e.either(chosen(n), m, rest))(number, make, end)
        return end()  # type: ignore[no-any-return]

    e.either(last, finish, keep)


def store_window(e: Emitter, window: Values, place: Any, words: Any) -> None:
    """The largest of four values, at least zero; and bits of where it was, the first of equal ones, if positive."""
    b, (first, second, third, fourth) = e.builder, window
    top = maximum(e, maximum(e, first, second), maximum(e, third, fourth))
    unknown = b.or_(b.fcmp_unordered("uno", first, second), b.fcmp_unordered("uno", third, fourth))
    top = b.select(unknown, e.constant(float("nan")), top)
    left = b.fcmp_ordered(">", top, e.constant(0.0))
    for k, value in enumerate(window):
        hit = b.and_(b.fcmp_ordered("==", value, top), left)
        left = b.and_(left, b.not_(hit))
        store_bits(e, hit, e.at(words, k * bit_bytes(e.lanes)))
    e.store(positive(e, top), place)


@intrinsic
def prefetch_rows(_, width, breadth, corner, row, rows, writing):  # type: ignore[no-untyped-def]
    """Prefetch some rows of a few vectors each, to read or to write them.

    Into the second-level cache: the first holds what the present tile reads.
    """
    lanes, columns = sides(width, breadth)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, corner, row, rows, writing = args
        e = Emitter(builder, lanes)

        def asked(write: bool) -> Values:
            def down(state: Values) -> Values:
                for j in range(0, columns, max(1, LINE_BYTES // e.bytes)):
                    e.prefetch(e.at(state[0], j * e.bytes), write, level=2)
                return [builder.add(state[0], row)]

            e.loop(rows, [corner], down)
            return []

        e.either(writing, lambda: asked(True), lambda: asked(False))
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, breadth, *[i64] * 4), generate
