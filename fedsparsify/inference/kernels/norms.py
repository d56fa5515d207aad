"""Operations across the channels of each pixel, or across the pixels of each channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.compiled import compiled
from ...native.exponential import exponential
from ...native.pointers import floats
from .gate_simd import sum_vectors

f32 = np.float32


@compiled
def softmax(width: Any, op: Any, arena: Any) -> None:
    """Softmax over the channels, a row of pixels at a time."""
    count = op.columns * len(width)
    top, total = floats(arena + 4 * op.workspace), floats(arena + 4 * (op.workspace + count))
    for i in range(op.rows):
        for k in range(count):
            top[k] = f32(-np.inf)
            total[k] = f32(0)
        for c in range(op.channels):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            for k in range(count):
                top[k] = max(top[k], source[k])
        for c in range(op.channels):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for k in range(count):
                share = exponential(source[k] - top[k])
                target[k] = share
                total[k] += share
        for k in range(count):
            total[k] = f32(1) / total[k]
        for c in range(op.channels):
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            for k in range(count):
                target[k] *= total[k]


@compiled
def norm(width: Any, op: Any, arena: Any, params: Any) -> None:
    """Zero mean and unit variance over the channels, a row of pixels at a time, then scale and shift per channel."""
    count, share = op.columns * len(width), f32(1) / f32(op.channels)
    scale, shift = floats(params + 4 * op.params), floats(params + 4 * (op.params + op.channels))
    middle, spread = floats(arena + 4 * op.workspace), floats(arena + 4 * (op.workspace + count))
    for i in range(op.rows):
        # Sums of differences: equal values have exactly their mean, and a common offset costs no digits.
        first = floats(arena + 4 * (op.source + i * op.source_row))
        for k in range(count):
            middle[k] = f32(0)
            spread[k] = f32(0)
        for c in range(op.channels):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            for k in range(count):
                middle[k] += source[k] - first[k]
        for k in range(count):
            middle[k] = first[k] + middle[k] * share
        for c in range(op.channels):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            for k in range(count):
                apart = source[k] - middle[k]
                spread[k] += apart * apart
        for k in range(count):
            spread[k] = f32(1) / np.sqrt(spread[k] * share + op.eps)
        for c in range(op.channels):
            source = floats(arena + 4 * (op.source + c * op.source_channel + i * op.source_row))
            target = floats(arena + 4 * (op.target + c * op.target_channel + i * op.target_row))
            a, b = scale[c], shift[c]
            for k in range(count):
                target[k] = (source[k] - middle[k]) * spread[k] * a + b


@compiled
def mean(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """The sum of each image's pixels, times scale plus shift, clamped, into all `cells` lanes of the image."""
    lanes, mask = len(width), 0 if op.lane_mask < 0 else indices + 4 * op.lane_mask
    scale, shift = floats(params + 4 * op.params), floats(params + 4 * (op.params + op.channels))
    for c in range(op.channels):
        sums, source = arena + 4 * (op.target + c * op.target_channel), arena + 4 * (op.source + c * op.source_channel)
        sum_vectors(width, sums, source, 4 * op.source_row, op.rows, op.columns, mask)
        target = floats(sums)
        first = 0
        while first < lanes:  # a range with a step would make numba add a check for zero, and no code image
            total = f32(0)
            for lane in range(op.cells):
                total += target[first + lane]
            total = min(max(total * scale[c] + shift[c], op.low), op.high)
            for lane in range(op.cells):
                target[first + lane] = total
            first += op.cells
