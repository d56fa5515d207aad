"""Operations on each value alone."""

from __future__ import annotations

from typing import Any

from ...native.compiled import compiled
from ...native.pointers import floats
from .gate_simd import combine_vectors


@compiled
def affine(width: Any, op: Any, arena: Any, params: Any) -> None:
    """Scale and shift per channel, then a clamp."""
    scale, shift = floats(params + 4 * op.params), floats(params + 4 * (op.params + op.channels))
    for c in range(op.channels):
        a, b = scale[c], shift[c]
        for i in range(op.rows):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for lane in range(op.columns * len(width)):
                target[lane] = min(max(source[lane] * a + b, op.low), op.high)


@compiled
def add(width: Any, op: Any, arena: Any) -> None:
    """The sum of two values, then a clamp."""
    for c in range(op.channels):
        for i in range(op.rows):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            second = floats(arena + 4 * (op.second + c * op.second_channel + i * op.second_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for lane in range(op.columns * len(width)):
                target[lane] = min(max(source[lane] + second[lane], op.low), op.high)


@compiled
def gate(width: Any, op: Any, arena: Any) -> None:
    """The product or sum of two values, then a clamp; the second may have one pixel for all of the first."""
    step = 0 if op.gated else 4 * len(width)
    for c in range(op.channels):
        for i in range(op.rows):
            source = arena + 4 * (op.source + c * op.source_channel + i * op.source_row)
            target = arena + 4 * (op.target + c * op.target_channel + i * op.target_row)
            second = arena + 4 * (op.second + c * op.second_channel + (0 if op.gated else i * op.second_row))
            combine_vectors(width, target, source, second, step, op.columns, op.product, op.low, op.high)
