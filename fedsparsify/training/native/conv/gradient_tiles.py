"""Vector code of gradients: of a tile's survivors, and of what a pool has taken in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....native.simd import FLOAT_BYTES, I32, I64, Emitter, Values, sides
from .rows import POOLED_SIZES, TILE_COLUMNS
from .tiles import bit_bytes, cells, from_corner, in_its_shape, load_bits, pair_inputs


def _interleaved(lanes: int, high: bool, pair: int) -> list[int]:
    """Indices that interleave `pair` floats of two vectors within each four lanes, from their low or high half."""
    taken = []
    for four in range(0, lanes, 4):
        places = range(four + (2 if high else 0), four + (4 if high else 2))
        if pair == 1:
            taken += [index for place in places for index in (place, lanes + place)]
        else:
            taken += [*places, *(lanes + place for place in places)]
    return taken


def sums_of_four(e: Emitter, four: Values) -> Any:
    """The sums of the lanes of four vectors, as a vector of four."""
    b = e.builder

    def shuffled(a: Any, c: Any, indices: list[int]) -> Any:
        return b.shuffle_vector(a, c, ir.Constant(ir.VectorType(I32, len(indices)), indices))

    def merged(a: Any, c: Any, pair: int) -> Any:
        low, high = (shuffled(a, c, _interleaved(e.lanes, half, pair)) for half in (False, True))
        return b.fadd(low, high)

    whole = merged(merged(four[0], four[1], 1), merged(four[2], four[3], 1), 2)
    lanes = e.lanes
    while lanes > 4:
        lanes //= 2
        whole = b.fadd(
            shuffled(whole, whole, list(range(lanes))), shuffled(whole, whole, list(range(lanes, 2 * lanes)))
        )
    return whole


class Sum:
    """A sum of products, in two chains: the next product of a chain waits for the one before it."""

    def __init__(self, e: Emitter) -> None:
        self._e, self._next = e, 0
        self._chains: Values = [None, None]

    def add(self, a: Any, b: Any) -> None:
        """Add a · b."""
        k, chains = self._next, self._chains
        chains[k] = self._e.builder.fmul(a, b) if chains[k] is None else self._e.fma(a, b, chains[k])
        self._next = 1 - k

    def total(self) -> Any:
        """The sum."""
        first, second = self._chains
        return first if second is None else self._e.builder.fadd(first, second)


@intrinsic
def gradient_visit(_, width, tall, numbers):  # type: ignore[no-untyped-def]
    """A tile of the gradient of one channel's outputs: adds Σ output gradient · input to each survivor's gradient.

    The numbers: rows, columns, near; x, x_row, x_column; offsets, gradient, count, beside, above; y, y_row, y_column;
    total; bits, bits_row. Survivors come in pairs as for `conv_visit`, of each kind an even number. At the address
    `total` (0: none) the tile's sum is added: it is the gradient of the channel's bias. With `bits` (0: none), y is the
    gradient after a pool of 2 × 2, and the bits say where the maxima were.
    """
    lanes, highest = sides(width, tall)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = [builder.extract_value(args[2], k) for k in range(numbers.count)]
        e = Emitter(builder, lanes)
        in_its_shape(e, given[:3], highest, lambda *shape: _gradient_visit(e, given[3:], highest, *shape))
        return context.get_dummy_value()

    return types.void(width, tall, numbers), generate


def _gradient_visit(e: Emitter, given: Values, highest: int, height: int, breadth: int, is_near: bool) -> None:
    builder = e.builder
    x, x_row, x_column, offsets, gradient, count, beside, above, y, y_row, y_column, total, bits, bits_row = given
    strides = x_row, None if is_near else x_column
    inputs = from_corner(e, *strides, height, breadth)

    def plain() -> Values:
        return [e.load(place) for place in cells(e, y, y_row, y_column, height, breadth)]

    def unpooled() -> Values:
        squares = [e.load(place) for place in cells(e, y, y_row, y_column, height // 2, breadth // 2)]
        word = bit_bytes(e.lanes)
        words = cells(e, bits, bits_row, ir.Constant(I64, 4 * word), height // 2, breadth // 2)
        found = []
        for i in range(height):
            for j in range(breadth):
                square = i // 2 * (breadth // 2) + j // 2
                flags = load_bits(e, e.at(words[square], (i % 2 * 2 + j % 2) * word))
                found.append(builder.select(flags, squares[square], e.constant(0.0)))
        return found

    even = is_near and not (height % 2 or breadth % 2)  # as all tiles of what a pool has taken in
    tile = e.either(bits, unpooled, plain) if even else plain()

    def product(offset: Any, k: int) -> Any:
        corner = builder.add(x, builder.sext(e.load(e.at(offset, k * FLOAT_BYTES), I32), I64))
        sum = Sum(e)
        for value, place in zip(tile, inputs(corner), strict=True):
            sum.add(value, e.load(place))
        return sum.total()

    def two_pairs(right: int, down: int) -> Callable[[Values], Values]:
        def add(state: Values) -> Values:
            offset, place = state
            sums = [Sum(e) for _ in range(4)]
            for k in (0, 2):
                corner = builder.add(x, builder.sext(e.load(e.at(offset, k * FLOAT_BYTES), I32), I64))
                for second, t, value in pair_inputs(e, corner, strides, (height, breadth), right, down):
                    sums[k + second].add(tile[t], value)
            add_floats(sums_of_four(e, [sum.total() for sum in sums]), place)
            return [e.at(offset, 4 * FLOAT_BYTES), e.at(place, 4 * FLOAT_BYTES)]

        return add

    def add_floats(values: Any, address: Any) -> None:
        pointer = builder.inttoptr(address, values.type.as_pointer())
        before = builder.load(pointer)
        before.align = FLOAT_BYTES
        builder.store(builder.fadd(before, values), pointer).align = FLOAT_BYTES

    def four(state: Values) -> Values:
        offset, place = state
        add_floats(sums_of_four(e, [product(offset, k) for k in range(4)]), place)
        return [e.at(offset, 4 * FLOAT_BYTES), e.at(place, 4 * FLOAT_BYTES)]

    def one(state: Values) -> Values:
        offset, place = state
        folded = sums_of_four(e, [product(offset, 0), *[e.constant(0.0)] * 3])
        add_floats(builder.extract_element(folded, ir.Constant(I32, 0)), place)
        return [e.at(offset, FLOAT_BYTES), e.at(place, FLOAT_BYTES)]

    def bias() -> Values:
        sums = list(tile)
        while len(sums) > 1:
            sums = [builder.fadd(*sums[k : k + 2]) if k + 1 < len(sums) else sums[k] for k in range(0, len(sums), 2)]
        folded = sums_of_four(e, [sums[0], *[e.constant(0.0)] * 3])
        add_floats(builder.extract_element(folded, ir.Constant(I32, 0)), total)
        return []

    e.either(total, bias, list)
    offset, place = offsets, gradient
    if breadth == TILE_COLUMNS and height == highest:
        for number, right, down in ((beside, 1, 0), (above, 0, 1)):
            half = builder.ashr(number, ir.Constant(I64, 1))
            offset, place = e.loop(half, [offset, place], two_pairs(right, down))
        count = builder.sub(count, builder.shl(builder.add(beside, above), ir.Constant(I64, 1)))
    quarter = builder.ashr(count, ir.Constant(I64, 2))
    offset, place = e.loop(quarter, [offset, place], four)
    e.loop(builder.and_(count, ir.Constant(I64, 3)), [offset, place], one)


@intrinsic
def unpool_tile(_, width, numbers):  # type: ignore[no-untyped-def]
    """The gradient before a pool of 2 × 2, for a tile of one channel and the border that a window around it needs.

    The numbers: size of the window, rows of the tile; y, y_row; bits, bits_row; target, target_row. `y` and `bits` are
    of the tile's corner; around the plane of y there is a border of zeros, so that any bits may lie there.
    """
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size, *given = [builder.extract_value(args[1], k) for k in range(numbers.count)]
        e = Emitter(builder, lanes)

        def of(sizes: tuple[int, ...]) -> Values:
            if len(sizes) == 1:
                _unpool_tile(e, given, (sizes[0] - 1) // 2)
                return []
            same = builder.zext(builder.icmp_signed("==", size, ir.Constant(I64, sizes[0])), I64)
            return e.either(same, lambda: of(sizes[:1]), lambda: of(sizes[1:]))

        of(POOLED_SIZES)
        return context.get_dummy_value()

    return types.void(width, numbers), generate


def _unpool_tile(e: Emitter, given: Values, border: int) -> None:
    b, word = e.builder, bit_bytes(e.lanes)
    rows, y, y_row, bits, bits_row, target, target_row = given

    def down(state: Values) -> Values:
        i, place = state
        above, odd = b.ashr(i, ir.Constant(I64, 1)), b.and_(i, ir.Constant(I64, 1))
        source = b.add(y, b.mul(above, y_row))
        flags = b.add(b.add(bits, b.mul(above, bits_row)), b.mul(odd, ir.Constant(I64, 2 * word)))
        squares = {k: e.load(e.at(source, k * e.bytes)) for k in range(-border >> 1, (3 + border >> 1) + 1)}
        for j in range(-border, TILE_COLUMNS + border):
            active = load_bits(e, e.at(flags, (j >> 1) * 4 * word + j % 2 * word))
            e.store(b.select(active, squares[j >> 1], e.constant(0.0)), e.at(place, (j + border) * e.bytes))
        return [e.at(i, 1), b.add(place, target_row)]

    e.loop(e.at(rows, 2 * border), [ir.Constant(I64, -border), target], down)
