"""Winograd's transforms: a tile of inputs becomes frequencies, and the products' sums become a tile of outputs.

A tile has four rows of four or eight outputs: F(4 × 4, 3 × 3) takes 36 products for sixteen outputs, F(4 × 8, 3 × 3)
60 for thirty-two; the weights alone would take 144 and 288.

Factors are read from a table in memory, and one or two lines go side by side, so that each serves both. As constants,
they would be kept on the stack as whole vectors, each of which takes as long to read as a vector of the tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, FLOAT_BYTES, I64, Emitter, Values, grid, sides
from .winograd_numbers import POINTS, ROWS, factors, frequencies, polynomial, without

Lines = list[Values]  # for each position along the lines, its value in every line


class Transform(Emitter):
    """Writes transforms of lines that go side by side."""

    def __init__(self, builder: Any, lanes: int, columns: int, table: Any) -> None:
        super().__init__(builder, lanes)
        self.across, self.down = POINTS[columns], POINTS[ROWS]
        self._table, self._factors = table, factors(columns)

    def add(self, totals: Values, factor: float, values: Values) -> Values:
        """Totals plus a factor times values."""
        pairs = list(zip(totals, values, strict=True))
        if abs(factor) == 1:
            return [(self.builder.fadd if factor > 0 else self.builder.fsub)(total, value) for total, value in pairs]
        splat = self.splat(self.load(self.at(self._table, FLOAT_BYTES * self._factors.index(factor)), F32))
        return [self.fma(splat, value, total) for total, value in pairs]

    def weighted(self, weights: list[float], values: Sequence[Values]) -> Values:
        """The sum of values times weights, the last of which is one."""
        total = values[-1]
        for weight, value in zip(weights[:-1], values[:-1], strict=True):
            total = self.add(total, weight, value)
        return total

    def part(self, t: Lines, points: tuple[float, ...], k: int) -> Lines:
        """A part of the frequencies: the one at 0, then two for each pair of points, then the one at infinity."""
        if k in (0, len(points) + 1):
            return [self.weighted(polynomial(points), t[:-1:2] if k == 0 else t[1::2])]
        point = points[k - 1]
        both = [even + odd for even, odd in zip(t[2:-1:2], t[1:-2:2], strict=True)]  # which have the same factors
        made = self.weighted(polynomial(without(points, k - 1)), both)
        even, odd = made[: len(t[0])], made[len(t[0]) :]
        return [self.add(even, point, odd), self.add(even, -point, odd)]

    def outputs(self, m: Lines, points: tuple[float, ...], wanted: range) -> Lines:
        """Some of the outputs that lines of frequencies stand for."""
        made = []
        sums = [self.add(plus, 1, minus) for plus, minus in zip(m[1:-1:2], m[2:-1:2], strict=True)]
        differences = [self.add(plus, -1, minus) for plus, minus in zip(m[1:-1:2], m[2:-1:2], strict=True)]
        for power in wanted:
            total, *others = differences if power % 2 else sums  # the first pair is at ±1
            for point, other in zip(points[1:], others, strict=True):
                total = self.add(total, point**power, other)
            if power in (0, 2 * len(points) - 1):
                total = self.add(total, 1, m[0] if power == 0 else m[-1])
            made.append(total)
        return made


@intrinsic
def winograd_in(_, width, columns, x, row, out, step, table):  # type: ignore[no-untyped-def]
    """A tile of input vectors, two more each way than outputs, as frequencies, `step` bytes apart."""
    lanes, breadth = sides(width, columns)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, x, row, out, step, table = args
        e, wide = Transform(builder, lanes, breadth, table), breadth + 2
        cells = grid(e, x, row, ir.Constant(I64, e.bytes), ROWS + 2, wide)
        addresses = steps(builder, out, step, frequencies(breadth))
        for part in range(len(e.down) + 2):  # as many frequencies downwards as fit the registers
            stacks = [[[e.load(cell)] for cell in cells[k::wide]] for k in range(wide)]
            lines = [[value for (value,) in e.part(stack, e.down, part)] for stack in stacks]
            made = (values for k in range(len(e.across) + 2) for values in e.part(lines, e.across, k))
            for k, values in enumerate(made):
                for value, address in zip(values, addresses[k::wide], strict=False):
                    e.store(value, address)
            addresses = addresses[len(lines[0]) * wide :]
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, columns, i64, i64, i64, i64, i64), generate


@intrinsic
def winograd_out(  # type: ignore[no-untyped-def]
    _, width, columns, square, sums, step, bias, out, row, low, high, table, a, b
):
    """Frequencies, `step` bytes apart, as a tile of outputs, plus bias, clamped; two rows at a time.

    With a `square` of two, only the largest of 2 × 2 outputs are written, times a plus b.
    """
    lanes, breadth, side = sides(width, columns, square)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, sums, step, bias, out, row, low, high, table, a, b = args
        e, wide = Transform(builder, lanes, breadth, table), breadth + 2
        start, bounds = e.splat(bias), (e.splat(low), e.splat(high))
        cells = steps(builder, sums, step, frequencies(breadth))
        addresses = iter(grid(e, out, row, ir.Constant(I64, e.bytes), ROWS // side, breadth // side))
        for top in range(0, ROWS, 2):
            stacks = [[[e.load(cell)] for cell in cells[k::wide]] for k in range(wide)]
            lines = [[value for (value,) in e.outputs(stack, e.down, range(top, top + 2))] for stack in stacks]
            made = zip(*e.outputs(lines, e.across, range(breadth)), strict=True)
            values = [value for line in made for value in line]
            for value in e.largest(values, breadth) if side == 2 else values:
                value = e.clamp(builder.fadd(value, start), *bounds)
                e.store(e.fma(value, e.splat(a), e.splat(b)) if side == 2 else value, next(addresses))
        return context.get_dummy_value()

    i64, f32 = types.int64, types.float32
    return types.void(width, columns, square, i64, i64, f32, i64, i64, f32, f32, i64, f32, f32), generate


def steps(builder: Any, start: Any, step: Any, count: int) -> Values:
    """Addresses some bytes apart."""
    made = [start]
    for _ in range(count - 1):
        made.append(builder.add(made[-1], step))
    return made
