"""Vector code of 3 × 3 convolutions in whole numbers by Winograd's transforms, F(4 × 4, 3 × 3) (Lavin and Gray, 2016).

Inputs of about eight bits become frequencies of 16, without rounding. Two channels go side by side, as instructions for
pairs of 16-bit integers take them; half of the lanes at a time then has their 32-bit sums.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....native.simd import F32, I32, I64, Values, grid, sides
from .facts import FREQUENCIES, LINE, OUTPUTS, SUM_SHIFT, TILE
from .simd import I16, IntEmitter

ROUNDING = float(3 << 22)  # added to a smaller number, the sum's last bits are the number, rounded to even
GROUP = 8  # lanes, of which half go to either vector of pairs


class Transform(IntEmitter):
    """Writes transforms of lines."""

    def times(self, value: Any, power: int) -> Any:
        """A value times a power of two."""
        return self.builder.shl(value, ir.Constant(value.type, [power] * value.type.count))

    def frequencies(self, x: Values) -> Values:
        """Six inputs of a line as frequencies: at 0, ±1, ±2 and infinity."""
        b = self.builder
        five = [b.add(value, self.times(value, 2)) for value in x[2:4]]
        even, odd = b.sub(x[4], self.times(x[2], 2)), b.sub(x[3], self.times(x[1], 2))
        near, far = b.sub(x[4], x[2]), self.times(b.sub(x[3], x[1]), 1)
        first = b.add(b.sub(self.times(x[0], 2), five[0]), x[4])
        last = b.add(b.sub(self.times(x[1], 2), five[1]), x[5])
        return [first, b.add(even, odd), b.sub(even, odd), b.add(near, far), b.sub(near, far), last]

    def outputs(self, m: Values) -> Values:
        """Four outputs of a line of frequencies, with the factors of winograd_numbers.OUTPUT."""
        b = self.builder
        sums, differences = [b.add(m[1], m[2]), b.add(m[3], m[4])], [b.sub(m[1], m[2]), b.sub(m[3], m[4])]
        return [
            b.add(self.times(b.add(m[0], sums[0]), 1), sums[1]),
            self.times(b.add(differences[0], differences[1]), 1),
            b.add(self.times(sums[0], 1), self.times(sums[1], 2)),
            b.add(self.times(differences[0], 1), self.times(b.add(differences[1], m[5]), 3)),
        ]

    def shuffled(self, a: Any, b: Any, places: list[int]) -> Any:
        """Some lanes of two vectors."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(places)), places))


def lanes_of(lanes: int, half: int) -> list[int]:
    """The lanes whose pairs, and sums, lie in one of two vectors."""
    return [first + k for first in range(0, lanes, GROUP) for k in range(half * GROUP // 2, (half + 1) * GROUP // 2)]


@intrinsic
def pair_in(_, width, x, channel, row, out, step, factors):  # type: ignore[no-untyped-def]
    """Tiles of two input channels, each times its factor, as frequencies, `step` bytes apart: two vectors of pairs."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, channel, row, out, step, factors = args
        e = Transform(builder, lanes)
        columns: list[list[Values]] = []
        for k in range(2):
            factor = e.splat(builder.trunc(e.load(e.at(factors, 4 * k), I32), I16))
            cells = grid(e, builder.add(x, channel) if k else x, row, ir.Constant(I64, e.bytes), LINE, LINE)
            values = [e.product(e.load(cell), factor) for cell in cells]
            columns.append([e.frequencies(values[j::LINE]) for j in range(LINE)])
        places = [[lane + k * lanes for lane in lanes_of(lanes, half) for k in range(2)] for half in range(2)]
        for i in range(LINE):
            lines = [e.frequencies([column[i] for column in channels]) for channels in columns]
            for a, b in zip(*lines, strict=True):
                for half in range(2):
                    e.store(e.shuffled(a, b, places[half]), e.at(out, half * e.bytes))
                out = builder.add(out, step)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, *[i64] * 6), generate


@intrinsic
def pair_product(_, width, x, weights, pairs, out):  # type: ignore[no-untyped-def]
    """Sums over pairs of channels for eight output channels, two vectors of 32 bits each; returns where weights end."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, weights, pairs, out = args
        e = IntEmitter(builder, lanes)

        def body(state: Values) -> Values:
            *sums, x, at = state
            values = [e.load(e.at(x, half * e.bytes)) for half in range(2)]
            for o in range(OUTPUTS):
                weight = builder.bitcast(e.twice(e.load(e.at(at, 4 * o), I32)), e.vector)
                for half, value in enumerate(values):
                    sums[2 * o + half] = e.dot(sums[2 * o + half], value, weight)
            return [*sums, e.at(x, 2 * e.bytes), e.at(at, 4 * OUTPUTS)]

        zeros = [ir.Constant(e.pairs, None)] * (2 * OUTPUTS)
        *sums, _, weights = e.loop(pairs, [*zeros, x, weights], body)
        for k, total in enumerate(sums):
            e.store(builder.bitcast(total, e.vector), e.at(out, k * e.bytes))
        return weights

    i64 = types.int64
    return i64(width, *[i64] * 4), generate


@intrinsic
def pair_out(_, width, square, sums, step, out, row, scale, bias, low, high, a, b):  # type: ignore[no-untyped-def]
    """Frequencies, `step` bytes apart, as a tile of 16-bit outputs: times scale plus bias, clamped and rounded.

    With a `square` of two, only the largest of 2 × 2 outputs are written, times a plus b.
    """
    lanes, side = sides(width, square)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, sums, step, out, row, scale, bias, low, high, a, b = args
        e = Transform(builder, lanes)
        floats = ir.VectorType(F32, lanes // 2)
        scaling = [_splat(builder, floats, number) for number in (scale, bias, low, high)]
        shift = ir.Constant(e.pairs, [SUM_SHIFT] * (lanes // 2))
        magic = ir.Constant(floats, [ROUNDING] * (lanes // 2))

        def finished(value: Any) -> Any:
            """A 32-bit sum as a 16-bit integer, in the lower half of 32 bits."""
            number = builder.fadd(builder.fmul(builder.sitofp(value, floats), scaling[0]), scaling[1])
            number = builder.select(builder.fcmp_ordered(">", number, scaling[2]), number, scaling[2])
            number = builder.select(builder.fcmp_ordered("<", number, scaling[3]), number, scaling[3])
            return builder.bitcast(builder.fadd(number, magic), e.vector)

        halves: list[Values] = []
        for half in range(2):
            at, loaded = e.at(sums, half * e.bytes), []
            for _ in range(FREQUENCIES):
                loaded.append(builder.ashr(builder.bitcast(e.load(at), e.pairs), shift))
                at = builder.add(at, step)
            lines = [e.outputs(loaded[j::LINE]) for j in range(LINE)]
            halves.append([finished(v) for i in range(TILE) for v in e.outputs([line[i] for line in lines])])
        places = [0] * lanes
        for half in range(2):
            for k, lane in enumerate(lanes_of(lanes, half)):
                places[lane] = half * lanes + 2 * k
        values = [e.shuffled(first, second, places) for first, second in zip(*halves, strict=True)]
        addresses = grid(e, out, row, ir.Constant(I64, e.bytes), TILE // side, TILE // side)
        if side == 2:
            factor, more = e.word(a), e.word(b)
            values = [builder.add(e.product(value, factor), more) for value in e.largest(values, TILE)]
        for value, address in zip(values, addresses, strict=True):
            e.store(value, address)
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, square, i64, i64, i64, i64, f32, f32, f32, f32, i64, i64), generate


def _splat(builder: Any, kind: Any, scalar: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        first, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, kind.count), None)
    )
