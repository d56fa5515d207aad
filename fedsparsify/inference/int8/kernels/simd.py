"""Vector code of 16-bit integers: the instructions that the target has, else plain arithmetic.

A vector has as many bytes as one of floats and twice as many lanes. Sums wrap around; `int8/numbers.py` chooses scales
for which no final sum can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba import config

from ....native.simd import I32, Emitter, Values

I16 = ir.IntType(16)
PRODUCTS = (  # lanes at a time, the feature that is needed, and the instruction: high half of a product, rounded
    (32, "avx512bw", "llvm.x86.avx512.pmul.hr.sw.512"),
    (16, "avx2", "llvm.x86.avx2.pmul.hr.sw"),
    (8, "ssse3", "llvm.x86.ssse3.pmul.hr.sw.128"),
)
DOTS = (  # the same of 32-bit sums: total + a product of pairs
    (16, "avx512vnni", "llvm.x86.avx512.vpdpwssd.512"),
    (8, "avxvnni", "llvm.x86.avx512.vpdpwssd.256"),
)
PAIR_PRODUCTS = (
    (16, "avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
    (8, "avx2", "llvm.x86.avx2.pmadd.wd"),
    (4, "sse2", "llvm.x86.sse2.pmadd.wd"),
)


LEVELS = {  # of processors, by LLVM's name
    "x86-64-v4": frozenset({"sse2", "ssse3", "avx2", "avx512bw"}),
    "x86-64-v3": frozenset({"sse2", "ssse3", "avx2"}),
    "x86-64": frozenset({"sse2"}),
}


@cache
def features() -> frozenset[str]:
    """What the processor that is compiled for can do; of one that is not known, nothing beyond plain arithmetic."""
    if config.CPU_NAME:
        return LEVELS.get(config.CPU_NAME, frozenset())
    if config.CPU_FEATURES is not None:
        return frozenset(name[1:] for name in config.CPU_FEATURES.split(",") if name.startswith("+"))
    return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)


class IntEmitter(Emitter):
    """Writes vector instructions of 16-bit lanes; `pairs` is a vector of the same bytes in 32-bit lanes."""

    def __init__(self, builder: Any, lanes: int) -> None:
        super().__init__(builder, lanes)
        self.vector, self.bytes = ir.VectorType(I16, lanes), 2 * lanes
        self.pairs = ir.VectorType(I32, lanes // 2)

    def load_anywhere(self, address: Any, kind: Any = None) -> Any:
        """A vector (of 16-bit integers, or of `kind`) from an address that need not be aligned."""
        loaded = super().load_anywhere(address, kind)
        loaded.align = 2
        return loaded

    def constant(self, value: float) -> Any:
        """The same integer in every lane."""
        return ir.Constant(self.vector, [int(value)] * self.lanes)

    def word(self, value: Any) -> Any:
        """A 64-bit integer's lower half in every lane of 16 bits."""
        return self.splat(self.builder.trunc(value, I16))

    def twice(self, word: Any) -> Any:
        """A 32-bit integer, which holds two lanes, all over a vector."""
        undefined = ir.Constant(self.pairs, ir.Undefined)
        first = self.builder.insert_element(undefined, word, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, self.lanes // 2), None))

    def product(self, a: Any, b: Any) -> Any:
        """(a·b + 2¹⁴) / 2¹⁵, rounded down, in each lane."""
        return self._by_parts(PRODUCTS, self._plain_product, a, b)

    def dot(self, total: Any, a: Any, b: Any) -> Any:
        """32-bit totals plus the products of pairs of lanes."""
        if any(count <= self.lanes // 2 and feature in features() for count, feature, _ in DOTS):
            return self._by_parts(DOTS, None, total, self._as_pairs(a), self._as_pairs(b))
        return self.builder.add(total, self._by_parts(PAIR_PRODUCTS, self._plain_pairs, a, b))

    def smaller(self, a: Any, b: Any) -> Any:
        """The smaller of two, in each lane."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def larger(self, a: Any, b: Any) -> Any:
        """The larger of two, in each lane."""
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)

    def clamp(self, value: Any, low: Any, high: Any) -> Any:
        """Between two vectors."""
        return self.smaller(self.larger(value, low), high)

    def _as_pairs(self, value: Any) -> Any:
        return self.builder.bitcast(value, self.pairs)

    def _plain_product(self, a: Any, b: Any) -> Any:
        wide = ir.VectorType(I32, a.type.count)
        builder, count = self.builder, a.type.count
        whole = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
        half, shift = (ir.Constant(wide, [number] * count) for number in (1 << 14, 15))
        return builder.trunc(builder.ashr(builder.add(whole, half), shift), a.type)

    def _plain_pairs(self, a: Any, b: Any) -> Any:
        wide = ir.VectorType(I32, a.type.count)
        whole = self.builder.mul(self.builder.sext(a, wide), self.builder.sext(b, wide))
        return self.builder.add(*(self._taken(whole, range(k, a.type.count, 2)) for k in (0, 1)))

    def _by_parts(
        self, instructions: tuple[tuple[int, str, str], ...], plain: Callable[..., Any] | None, *values: Any
    ) -> Any:
        """An operation on whole vectors by the widest instruction that there is; wider vectors are cut into parts."""
        results = self.pairs if instructions is not PRODUCTS else self.vector
        for lanes, feature, name in instructions:
            if lanes > results.count or feature not in features():
                continue
            made: Values = []
            for first in range(0, results.count, lanes):
                parts = [self._part(value, first, lanes, results.count) for value in values]
                kind = ir.FunctionType(ir.VectorType(results.element, lanes), [part.type for part in parts])
                known = self.builder.module.globals.get(name)
                made.append(self.builder.call(known or ir.Function(self.builder.module, kind, name), parts))
            return self._joined(made)
        assert plain is not None
        return plain(*values)

    def _part(self, value: Any, first: int, lanes: int, whole: int) -> Any:
        """What belongs to some of the `whole` lanes of a result; a lane may take two of a value's."""
        each = value.type.count // whole
        return value if lanes == whole else self._taken(value, range(each * first, each * (first + lanes)))

    def _taken(self, value: Any, places: range) -> Any:
        mask = ir.Constant(ir.VectorType(I32, len(places)), list(places))
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)

    def _joined(self, parts: Values) -> Any:
        while len(parts) > 1:
            places = list(range(2 * parts[0].type.count))
            mask = ir.Constant(ir.VectorType(I32, len(places)), places)
            parts = [self.builder.shuffle_vector(a, b, mask) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]
