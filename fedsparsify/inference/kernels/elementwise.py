"""Operations on each value alone, or across the channels of one pixel."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.compiled import compiled
from ...native.exponential import exponential
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
def softmax(width: Any, op: Any, arena: Any) -> None:
    """Softmax over the channels, pixel by pixel."""
    for i in range(op.rows):
        for j in range(op.columns * len(width)):
            source = floats(arena + 4 * (op.source + i * op.source_row + j))
            target = floats(arena + 4 * (op.target + i * op.target_row + j))
            top, total = np.float32(-np.inf), np.float32(0)
            for c in range(op.channels):
                top = max(top, source[c * op.source_channel])
            for c in range(op.channels):
                share = exponential(source[c * op.source_channel] - top)
                target[c * op.target_channel] = share
                total += share
            for c in range(op.channels):
                target[c * op.target_channel] /= total
