"""Operations on each value alone."""

from __future__ import annotations

from typing import Any

from ...native.compiled import compiled
from ...native.pointers import floats
from .activations import activation


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
def activate(width: Any, op: Any, arena: Any) -> None:
    """An activation other than a clamp."""
    for c in range(op.channels):
        for i in range(op.rows):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for lane in range(op.columns * len(width)):
                target[lane] = activation(op.activation, source[lane], op.slope)


@compiled
def gate(width: Any, op: Any, arena: Any) -> None:
    """The product or sum of two values, then a clamp; the second may have one pixel for all of the first."""
    lanes = len(width)
    for c in range(op.channels):
        for i in range(op.rows):
            source = arena + 4 * (op.source + c * op.source_channel + i * op.source_row)
            target = arena + 4 * (op.target + c * op.target_channel + i * op.target_row)
            second = arena + 4 * (op.second + c * op.second_channel)
            if op.gated == 0:
                _combine(op, source, second + 4 * i * op.second_row, target, op.columns * lanes)
            else:
                for j in range(op.columns):
                    _combine(op, source + 4 * j * lanes, second, target + 4 * j * lanes, lanes)


@compiled
def _combine(op: Any, source: Any, second: Any, target: Any, count: Any) -> None:
    a, b, made = floats(source), floats(second), floats(target)
    if op.product == 1:
        for k in range(count):
            made[k] = min(max(a[k] * b[k], op.low), op.high)
    else:
        for k in range(count):
            made[k] = min(max(a[k] + b[k], op.low), op.high)
