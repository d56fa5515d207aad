"""Vector code of the layers besides convolutions: functions of runs of vectors, and of one pool's window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....native.simd import I64, Emitter, Values, sides
from .tiles import bit_bytes, larger_or_nan, load_bits, positive, store_bits, store_window

Compute = Callable[[Emitter, Values, Values, Values], Values]
Steps = Callable[[Emitter], list[int]]
CHAINS = 4  # sums that grow at the same time: an addition takes about as many cycles


def along(compute: Compute, sums: int = 0, steps: Steps | None = None) -> Any:
    """A function of `count` consecutive vectors: `compute(emitter, places, numbers, sums)` for each of them.

    In numba code it takes the vectors' first addresses and float factors as tuples. `sums` vectors, whose addresses
    come last among the places, are loaded before and stored afterwards; `compute` gives their next values. `steps` says
    by how many bytes the other places move, if not by one vector each.
    """

    @intrinsic
    def run(_, width, count, places, numbers):  # type: ignore[no-untyped-def]
        (lanes,) = sides(width)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e = Emitter(builder, lanes)
            first = [builder.extract_value(args[2], k) for k in range(places.count)]
            factors = [e.splat(builder.extract_value(args[3], k)) for k in range(numbers.count)]
            held = first[len(first) - sums :]
            moving = first[: len(first) - sums]

            def body(state: Values) -> Values:
                now, totals = state[: len(moving)], state[len(moving) :]
                totals = [*compute(e, now, factors, totals[:sums]), *totals[sums:]]
                return [*advanced(now), *totals]

            def several(state: Values) -> Values:
                now, totals = state[: len(moving)], state[len(moving) :]
                for k in range(0, chains * sums, sums):
                    totals[k : k + sums] = compute(e, now, factors, totals[k : k + sums])
                    now = advanced(now)
                return [*now, *totals]

            def advanced(now: Values) -> Values:
                return [e.at(place, step) for place, step in zip(now, moves, strict=True)]

            moves = steps(e) if steps else [e.bytes] * len(moving)
            chains = CHAINS if sums else 1
            idle = [e.constant(0.0)] * (sums * (chains - 1))
            state = [*moving, *(e.load(place) for place in held), *idle]
            if chains > 1:
                state = e.loop(builder.sdiv(args[1], ir.Constant(I64, chains)), state, several)
                state = e.loop(builder.srem(args[1], ir.Constant(I64, chains)), state, body)
            else:
                state = e.loop(args[1], state, body)
            totals = state[len(moving) :]
            for k, place in enumerate(held):
                total = totals[k]
                for other in totals[k + sums :: sums]:
                    total = builder.fadd(total, other)
                e.store(total, place)
            return context.get_dummy_value()

        return types.void(width, types.int64, places, numbers), generate

    return run


def _where_positive(e: Emitter, condition: Any, value: Any) -> Any:
    active = e.builder.fcmp_ordered(">", condition, e.constant(0.0))
    return e.builder.select(active, value, e.constant(0.0))


def _copy(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(e.load(places[1]), places[0])
    return sums


def _accumulate(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(e.builder.fadd(e.load(places[0]), e.load(places[1])), places[0])
    return sums


def _relu(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(positive(e, e.load(places[1])), places[0])
    return sums


def _relu_back(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(_where_positive(e, e.load(places[2]), e.load(places[1])), places[0])
    return sums


def _relu_back_accumulate(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    value = _where_positive(e, e.load(places[2]), e.load(places[1]))
    e.store(e.builder.fadd(e.load(places[0]), value), places[0])
    return sums


def _add(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(e.builder.fadd(e.load(places[1]), e.load(places[2])), places[0])
    return sums


def _add_relu(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(positive(e, e.builder.fadd(e.load(places[1]), e.load(places[2]))), places[0])
    return sums


def _multiply(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(e.builder.fmul(e.load(places[1]), e.load(places[2])), places[0])
    return sums


def _multiply_accumulate(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(e.fma(e.load(places[1]), e.load(places[2]), e.load(places[0])), places[0])
    return sums


def _clear(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    e.store(e.constant(0.0), places[0])
    return sums


def _norm_sum(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Numbers: none that are used."""
    return [e.builder.fadd(sums[0], e.load(places[0]))]


def _norm_squares(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Numbers: the mean."""
    gap = e.builder.fsub(e.load(places[0]), numbers[0])
    return [e.fma(gap, gap, sums[0])]


def _norm(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Numbers: scale, shift."""
    e.store(e.fma(e.load(places[1]), numbers[0], numbers[1]), places[0])
    return sums


def _norm_relu(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Numbers: scale, shift."""
    e.store(positive(e, e.fma(e.load(places[1]), numbers[0], numbers[1])), places[0])
    return sums


def _norm_add(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Numbers: scale, shift."""
    e.store(e.builder.fadd(e.fma(e.load(places[1]), numbers[0], numbers[1]), e.load(places[2])), places[0])
    return sums


def _norm_add_relu(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Numbers: scale, shift."""
    sum = e.builder.fadd(e.fma(e.load(places[1]), numbers[0], numbers[1]), e.load(places[2]))
    e.store(positive(e, sum), places[0])
    return sums


def _active(e: Emitter, x: Any, gradient: Any, numbers: Values) -> Any:
    return _where_positive(e, e.fma(x, numbers[0], numbers[1]), gradient)


def _norm_back_sums(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Places: gradient, input. Numbers: scale, shift, mean. Sums: of the gradient, and times the input's deviation."""
    gradient, x = e.load(places[0]), e.load(places[1])
    return [e.builder.fadd(sums[0], gradient), e.fma(gradient, e.builder.fsub(x, numbers[2]), sums[1])]


def _norm_relu_back_sums(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    x = e.load(places[1])
    gradient = _active(e, x, e.load(places[0]), numbers)
    return [e.builder.fadd(sums[0], gradient), e.fma(gradient, e.builder.fsub(x, numbers[2]), sums[1])]


def _norm_input_gradient(e: Emitter, places: Values, numbers: Values, relu: bool) -> Any:
    """Numbers: scale, shift, factor of the input, constant."""
    x, gradient = e.load(places[2]), e.load(places[1])
    gradient = _active(e, x, gradient, numbers) if relu else gradient
    return e.fma(gradient, numbers[0], e.fma(x, numbers[2], numbers[3]))


def _norm_back(relu: bool, accumulates: bool) -> Compute:
    """Places: where it goes, gradient, input."""

    def compute(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
        value = _norm_input_gradient(e, places, numbers, relu)
        e.store(e.builder.fadd(e.load(places[0]), value) if accumulates else value, places[0])
        return sums

    return compute


def _square(e: Emitter, upper: Any, lower: Any) -> Values:
    """A square of 2 × 2 vectors, in two rows."""
    return [e.load(e.at(row, k * e.bytes)) for row in (upper, lower) for k in (0, 1)]


def _spread(e: Emitter, gradient: Any, bits: Any) -> Values:
    """The gradient after a pool of 2 × 2, where the bits say that the maximum was."""
    flags = (load_bits(e, e.at(bits, k * bit_bytes(e.lanes))) for k in range(4))
    return [e.builder.select(flag, gradient, e.constant(0.0)) for flag in flags]


def _norm_pool(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Places: pooled value, two rows of the input, bits. Numbers: scale, shift."""
    pooled, upper, lower, bits = places
    store_window(e, [e.fma(x, numbers[0], numbers[1]) for x in _square(e, upper, lower)], pooled, bits)
    return sums


def _norm_pool_back_sums(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Places: pooled gradient, two rows of the input, bits. Numbers: mean. Sums: as without a pool."""
    pooled, upper, lower, bits = places
    total, product = sums
    for gradient, x in zip(_spread(e, e.load(pooled), bits), _square(e, upper, lower), strict=True):
        total = e.builder.fadd(total, gradient)
        product = e.fma(gradient, e.builder.fsub(x, numbers[0]), product)
    return [total, product]


def _norm_pool_back(e: Emitter, places: Values, numbers: Values, sums: Values) -> Values:
    """Places: two rows where it goes, pooled gradient, two rows of the input, bits. Numbers: as without a pool."""
    *rows, pooled, upper, lower, bits = places
    targets = [e.at(row, k * e.bytes) for row in rows for k in (0, 1)]
    gradients = _spread(e, e.load(pooled), bits)
    for target, gradient, x in zip(targets, gradients, _square(e, upper, lower), strict=True):
        e.store(e.fma(gradient, numbers[0], e.fma(x, numbers[2], numbers[3])), target)
    return sums


def _squares(before: int) -> Steps:
    """The steps of so many rows, a pooled value, two rows and four words of bits, from a square to the next."""
    return lambda e: [*[2 * e.bytes] * before, e.bytes, 2 * e.bytes, 2 * e.bytes, 4 * bit_bytes(e.lanes)]


copy, accumulate, relu = along(_copy), along(_accumulate), along(_relu)
relu_back, relu_back_accumulate = along(_relu_back), along(_relu_back_accumulate)
add, add_relu = along(_add), along(_add_relu)
multiply, multiply_accumulate, clear = along(_multiply), along(_multiply_accumulate), along(_clear)
norm_sum, norm_squares = along(_norm_sum, 1), along(_norm_squares, 1)
norm, norm_relu = along(_norm), along(_norm_relu)
norm_add, norm_add_relu = along(_norm_add), along(_norm_add_relu)
norm_back_sums, norm_relu_back_sums = along(_norm_back_sums, 2), along(_norm_relu_back_sums, 2)
norm_pool, norm_pool_back = along(_norm_pool, 0, _squares(0)), along(_norm_pool_back, 0, _squares(2))
norm_pool_back_sums = along(_norm_pool_back_sums, 2, _squares(0))
norm_back, norm_relu_back = along(_norm_back(False, False)), along(_norm_back(True, False))
norm_back_accumulate, norm_relu_back_accumulate = along(_norm_back(False, True)), along(_norm_back(True, True))


@intrinsic
def mask_run(_, width, count, place, bits):  # type: ignore[no-untyped-def]
    """Zero where a bit is not set, in `count` vectors."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        e = Emitter(builder, lanes)

        def body(state: Values) -> Values:
            place, bits = state
            e.store(builder.select(load_bits(e, bits), e.load(place), e.constant(0.0)), place)
            return [e.at(place, e.bytes), e.at(bits, bit_bytes(lanes))]

        e.loop(args[1], [args[2], args[3]], body)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, i64, i64, i64), generate


def _window(e: Emitter, source: Any, row: Any, rows: Any, columns: Any, state: Values, body: Any) -> Values:
    """Fold `body(address, state)` over the vectors of a window."""

    def along_row(now: Values) -> Values:
        return [*body(now[-1], now[:-1]), e.at(now[-1], e.bytes)]

    def down(now: Values) -> Values:
        after = e.loop(columns, [*now[:-1], now[-1]], along_row)[:-1]
        return [*after, e.builder.add(now[-1], row)]

    return e.loop(rows, [*state, source], down)[:-1]


@intrinsic
def max_window(_, width, target, source, row, rows, columns, bits, bits_row):  # type: ignore[no-untyped-def]
    """The largest value of a window, and bits of where it was: the first of equal ones."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, rows, columns, bits, bits_row = args
        e = Emitter(builder, lanes)
        flags = ir.VectorType(ir.IntType(1), lanes)
        (top,) = _window(
            *(e, source, row, rows, columns, [e.load(source)]),
            lambda place, state: [larger_or_nan(e, state[0], e.load(place))],
        )
        e.store(top, target)

        def along_row(state: Values) -> Values:
            left, place, word = state
            hit = builder.and_(builder.fcmp_ordered("==", e.load(place), top), left)
            store_bits(e, hit, word)
            return [builder.and_(left, builder.not_(hit)), e.at(place, e.bytes), e.at(word, bit_bytes(lanes))]

        def down(state: Values) -> Values:
            left, place, word = state
            (left, *_) = e.loop(columns, [left, place, word], along_row)
            return [left, builder.add(place, row), builder.add(word, bits_row)]

        e.loop(rows, [ir.Constant(flags, [1] * lanes), source, bits], down)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, *[i64] * 7), generate


@intrinsic
def max_window_back(_, width, target, source, row, rows, columns, bits, bits_row, added):  # type: ignore[no-untyped-def]
    """The gradient at `source` to where the bits of a window are set; added to what is there, or stored."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, rows, columns, bits, bits_row, added = args
        e = Emitter(builder, lanes)
        gradient = e.load(source)

        def along_row(state: Values) -> Values:
            place, word = state
            value = builder.select(load_bits(e, word), gradient, e.constant(0.0))
            (value,) = e.either(added, lambda: [builder.fadd(e.load(place), value)], lambda: [value])
            e.store(value, place)
            return [e.at(place, e.bytes), e.at(word, bit_bytes(lanes))]

        def down(state: Values) -> Values:
            e.loop(columns, [*state], along_row)
            return [builder.add(state[0], row), builder.add(state[1], bits_row)]

        e.loop(rows, [target, bits], down)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, *[i64] * 8), generate


@intrinsic
def mean_window(_, width, target, source, row, rows, columns, factor):  # type: ignore[no-untyped-def]
    """The sum of a window, times a factor."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, rows, columns, factor = args
        e = Emitter(builder, lanes)
        (total,) = _window(
            *(e, source, row, rows, columns, [e.constant(0.0)]),
            lambda place, state: [builder.fadd(state[0], e.load(place))],
        )
        e.store(builder.fmul(total, e.splat(factor)), target)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, *[i64] * 5, types.float32), generate


@intrinsic
def mean_window_back(_, width, target, source, row, rows, columns, factor):  # type: ignore[no-untyped-def]
    """The gradient at `source`, times a factor, added to every value of a window."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, row, rows, columns, factor = args
        e = Emitter(builder, lanes)
        share = builder.fmul(e.load(source), e.splat(factor))

        def add_share(place: Any, state: Values) -> Values:
            e.store(builder.fadd(e.load(place), share), place)
            return []

        _window(e, target, row, rows, columns, [], add_share)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, *[i64] * 5, types.float32), generate
