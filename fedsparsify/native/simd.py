"""LLVM vector code for numba functions, as intrinsics.

Widths and tile sides reach an intrinsic as the *length* of a tuple argument, so that each is part of a type: numba
compiles one version per width, and its disk cache tells them apart. Addresses are plain 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
FLOAT_BYTES = 4
AHEAD = 2048  # bytes by which a stream of weights is prefetched ahead

Values = list[Any]


class Emitter:
    """Writes vector instructions of one width through an IR builder."""

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

    def nonzero(self, address: Any) -> Any:
        """Which of the integers at an address are not 0, lane by lane."""
        kind = ir.VectorType(I32, self.lanes)
        return self.builder.icmp_signed("!=", self.load_anywhere(address, kind), ir.Constant(kind, None))

    def store(self, value: Any, address: Any, past_caches: bool = False) -> None:
        """A vector to an aligned address."""
        stored = self.builder.store(value, self.builder.inttoptr(address, self.vector.as_pointer()))
        stored.align = self.bytes
        if past_caches:
            stored.set_metadata("nontemporal", self.builder.module.add_metadata([ir.Constant(I32, 1)]))

    def prefetch_ahead(self, address: Any) -> None:
        """Prefetch a stream some way ahead; the processor does so by itself, but stops at the end of a page."""
        self.prefetch(self.at(address, AHEAD))

    def prefetch(self, address: Any, writing: bool = False, level: int = 1) -> None:
        """Prefetch a cache line, to read it or to write it, into the first- or the second-level cache."""
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
        name = "llvm.prefetch.p0i8"
        known = self.builder.module.globals.get(name)
        numbers = [ir.Constant(I32, value) for value in (int(writing), 4 - level, 1)]  # of data
        line = self.builder.inttoptr(address, pointer)
        self.builder.call(known or ir.Function(self.builder.module, kind, name), [line, *numbers])

    def constant(self, value: float) -> Any:
        """The same constant in every lane."""
        return ir.Constant(self.vector, [value] * self.lanes)

    def splat(self, scalar: Any) -> Any:
        """A scalar in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, self.lanes), None))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once where the processor has the instruction; where not, `llvm.fma` would call a library."""
        name = f"llvm.fmuladd.v{self.lanes}f32"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        known = self.builder.module.globals.get(name)
        return self.builder.call(known or ir.Function(self.builder.module, kind, name), [a, b, c])

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        """Between two vectors; a NaN stays a NaN."""
        b = self.builder
        value = b.select(b.fcmp_ordered("<", value, low), low, value)
        return b.select(b.fcmp_ordered(">", value, high), high, value)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of two, in each lane."""
        return self.builder.select(self.builder.fcmp_unordered(">", b, a), b, a)

    def largest(self, tile: Values, breadth: int) -> Values:
        """The largest values of the squares of 2 × 2 vectors in a tile of some breadth."""
        pairs = [self.larger(a, b) for a, b in zip(tile[::2], tile[1::2], strict=True)]
        rows = [pairs[k : k + breadth // 2] for k in range(0, len(pairs), breadth // 2)]
        return [self.larger(a, b) for two in zip(rows[::2], rows[1::2], strict=True) for a, b in zip(*two, strict=True)]

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


@intrinsic
def transpose(_, width, target, target_step, source, source_step):  # type: ignore[no-untyped-def]
    """A square of floats, as wide as a vector, with rows and columns exchanged."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, target_step, source, source_step = args
        e = Emitter(builder, lanes)
        rows: Values = []
        for _ in range(lanes):
            rows.append(e.load_anywhere(source))
            source = builder.add(source, source_step)
        for value in _transposed(e, rows):
            e.store(value, target)
            target = builder.add(target, target_step)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, i64, i64, i64, i64), generate


@intrinsic
def transpose_lines(_, width, target, source, offsets):  # type: ignore[no-untyped-def]
    """The same from rows at byte offsets of 32 bits, to vectors side by side."""
    (lanes,) = sides(width)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, target, source, offsets = args
        e = Emitter(builder, lanes)
        rows: Values = []
        for lane in range(lanes):
            offset = builder.sext(e.load(e.at(offsets, 4 * lane), I32), I64)
            rows.append(e.load_anywhere(builder.add(source, offset)))
        for k, value in enumerate(_transposed(e, rows)):
            e.store(value, e.at(target, k * e.bytes))
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(width, i64, i64, i64), generate


def _transposed(e: Emitter, rows: Values) -> Values:
    """As many vectors as each has lanes, with rows and columns exchanged."""
    rows, lanes, distance = list(rows), e.lanes, 1
    while distance < lanes:
        for i in (i for i in range(lanes) if not i & distance):
            a, b = rows[i], rows[i + distance]
            take: tuple[list[int], list[int]] = [], []
            for lane in range(lanes):
                upper = bool(lane & distance)
                take[0].append(lane - distance + lanes if upper else lane)
                take[1].append(lane + lanes if upper else lane + distance)
            rows[i], rows[i + distance] = (
                e.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, lanes), t)) for t in take
            )
        distance *= 2
    return rows
