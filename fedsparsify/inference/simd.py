"""Pieces of LLVM vector code, put into numba functions as intrinsics.

Widths and tile sides reach an intrinsic as the *length* of a tuple argument, so that each is part of a type: numba
compiles one version per width, and its disk cache knows them apart. Addresses are plain 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
FLOAT_BYTES = 4
IN_FLIGHT = 8  # additions under way at a time that hide the latency of one

Values = list[Any]


class Emitter:
    """Writes vector instructions of one width at an IR builder's place."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.lanes = lanes
        self.vector = ir.VectorType(F32, lanes)
        self.bytes = lanes * FLOAT_BYTES

    def at(self, address: Any, offset: int) -> Any:
        """An address some constant bytes further."""
        return self.builder.add(address, ir.Constant(I64, offset)) if offset else address

    def load(self, address: Any, kind: Any = None) -> Any:
        """A vector from an aligned address, or a scalar of `kind`."""
        kind = kind or self.vector
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = self.bytes if kind is self.vector else FLOAT_BYTES
        return loaded

    def load_anywhere(self, address: Any, kind: Any = None) -> Any:
        """A vector (of floats, or of `kind`) from an address that need not be aligned."""
        loaded = self.builder.load(self.builder.inttoptr(address, (kind or self.vector).as_pointer()))
        loaded.align = FLOAT_BYTES
        return loaded

    def store(self, value: Any, address: Any) -> None:
        """A vector to an aligned address."""
        self.builder.store(value, self.builder.inttoptr(address, self.vector.as_pointer())).align = self.bytes

    def constant(self, value: float) -> Any:
        """The same constant in every lane."""
        return ir.Constant(self.vector, [value] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        """A scalar in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, self.lanes), None))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once."""
        name = f"llvm.fma.v{self.lanes}f32"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        known = self.builder.module.globals.get(name)
        return self.builder.call(known or ir.Function(self.builder.module, kind, name), [a, b, c])

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        """Between two vectors; a NaN stays a NaN."""
        b = self.builder
        value = b.select(b.fcmp_ordered("<", value, low), low, value)
        return b.select(b.fcmp_ordered(">", value, high), high, value)

    def loop(self, count: Any, state: Values, body: Callable[[Values], Values]) -> Values:
        """`count` times: state = body(state)."""
        b = self.builder
        before = b.block
        head, inside, after = (b.append_basic_block(name) for name in ("head", "inside", "after"))
        b.branch(head)
        b.position_at_end(head)
        left = b.phi(I64)
        now = [b.phi(value.type) for value in state]
        b.cbranch(b.icmp_signed(">", left, ir.Constant(I64, 0)), inside, after)
        b.position_at_end(inside)
        then = body(now)
        for phi, first, next in zip(
            [left, *now], [count, *state], [b.sub(left, ir.Constant(I64, 1)), *then], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(next, b.block)
        b.branch(head)
        b.position_at_end(after)
        return now

    def either(self, condition: Any, yes: Callable[[], Values], no: Callable[[], Values]) -> Values:
        """What one of two branches gives."""
        b = self.builder
        blocks = [b.append_basic_block(name) for name in ("yes", "no", "then")]
        b.cbranch(b.icmp_signed("!=", condition, ir.Constant(I64, 0)), *blocks[:2])
        ends = []
        for block, make in zip(blocks[:2], (yes, no), strict=True):
            b.position_at_end(block)
            values = make()
            ends.append((values, b.block))
            b.branch(blocks[2])
        b.position_at_end(blocks[2])
        merged = []
        for pair in zip(ends[0][0], ends[1][0], strict=True):
            phi = b.phi(pair[0].type)
            for value, (_, block) in zip(pair, ends, strict=True):
                phi.add_incoming(value, block)
            merged.append(phi)
        return merged


def sides(*tags: Any) -> Sequence[int]:
    """The numbers that tuple types stand for."""
    return [tag.count for tag in tags]


def grid(e: Emitter, base: Any, row: Any, column: Any, rows: int, columns: int) -> Values:
    """Addresses of a tile's vectors, row by row."""
    b = e.builder
    addresses: Values = []
    for i in range(rows):
        for j in range(columns):
            addresses.append(base if j == 0 else b.add(addresses[-1], column))
        if i + 1 < rows:
            base = b.add(base, row)
    return addresses


def begin(e: Emitter, first: Any, bias: Any, scratch: Values) -> Values:
    """Sums at the start of a visit: the bias in a channel's first one, else what was kept in `scratch`."""
    return e.either(first, lambda: [e.splat(bias)] * len(scratch), lambda: [e.load(place) for place in scratch])


def end(e: Emitter, last: Any, sums: Values, scratch: Values, places: Values, low: Any, high: Any) -> None:
    """Sums at the end of a visit: clamped to their places in a channel's last one, else kept in `scratch`."""

    def finish() -> Values:
        bounds = e.splat(low), e.splat(high)
        for total, place in zip(sums, places, strict=True):
            e.store(e.clamp(total, *bounds), place)
        return []

    def keep() -> Values:
        for total, place in zip(sums, scratch, strict=True):
            e.store(total, place)
        return []

    e.either(last, finish, keep)


@intrinsic
def sparse_tile(  # type: ignore[no-untyped-def]
    _, width, rows, columns, strided, x, row, column, stream, partial, first, last, bias, out, out_row, low, high
):
    """One output channel of a rows × columns tile, over one visit of the stream (see streams.py).

    Starts from the bias if `first`, else from `partial`; ends in `out`, clamped, if `last`, else in `partial`.
    `strided` is a tuple of two where inputs of neighbouring outputs do not lie side by side; then there are no pairs.
    Returns the address behind the visit.
    """
    lanes, height, breadth, apart = sides(width, rows, columns, strided)
    tile = height * breadth
    sets = max(1, IN_FLIGHT // tile)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, _, x, row, column, stream, partial, first, last, bias, out, out_row, low, high = args
        e = Emitter(builder, lanes)
        if apart == 1:
            column = ir.Constant(I64, e.bytes)  # part of the instructions, which makes them a tenth faster
        scratch = [e.at(partial, t * e.bytes) for t in range(tile)]
        counts = [builder.zext(e.load(e.at(stream, k * 4), I32), I64) for k in range(3)]
        stream = e.at(stream, 12)

        def add(sums: Values, at: Any) -> Values:
            """One weight and the offset of its input."""
            weight = e.splat(e.load(at, F32))
            base = builder.add(x, builder.sext(e.load(e.at(at, 4), I32), I64))
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
            done: Values = []
            for k in range(sets):
                done += add(sums[k * tile : (k + 1) * tile], e.at(at, k * 8))
            return [*done, e.at(at, sets * 8)]

        sums = begin(e, first, bias, scratch)
        more = [e.constant(0.0)] * (tile * (sets - 1))
        amount = ir.Constant(I64, sets)
        *sums, stream = e.loop(builder.udiv(counts[0], amount), [*sums, *more, stream], several)
        for k in range(1, sets):
            added = zip(sums[:tile], sums[k * tile : (k + 1) * tile], strict=True)
            sums[:tile] = [builder.fadd(a, b) for a, b in added]
        state = [*sums[:tile], stream]
        if sets > 1:
            rest = builder.urem(counts[0], amount)
            state = e.loop(rest, state, lambda s: [*add(s[:-1], s[-1]), e.at(s[-1], 8)])
        if height > 1 and apart == 1:  # smaller tiles gain nothing from pairs
            state = e.loop(counts[1], state, lambda s: add_pair(s, 1, 0))
            state = e.loop(counts[2], state, lambda s: add_pair(s, 0, 1))
        *sums, stream = state
        places = grid(e, out, out_row, ir.Constant(I64, e.bytes), height, breadth)
        end(e, last, sums, scratch, places, low, high)
        return stream

    i64, f32 = types.int64, types.float32
    numbers = (i64, i64, i64, i64, i64, i64, i64, f32, i64, i64, f32, f32)
    return i64(width, rows, columns, strided, *numbers), generate
