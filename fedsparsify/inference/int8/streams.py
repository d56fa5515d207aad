"""Multipliers of integer convolutions, packed into the streams that the kernels read.

Input: a convolution, its multipliers and the storage of its input. Output: an array of 32-bit words: counts, then pairs
of a multiplier, twice in one word, and the byte offset of its input.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..frontend.steps import Conv
from ..layout.storage import Storage
from ..lowering.constants import int32
from .numbers import Integers

ELEMENT = 2  # bytes
POSITIONS = 9  # of a kernel


def int_stream(step: Conv, multipliers: Integers, source: Storage, blocks: int) -> NDArray[np.int32]:
    """One visit per block of input channels and output channel: a count, then so many entries."""
    outputs, depth = step.weight.shape[:2]
    o, c, ky, kx = np.unravel_index(step.weight.places, step.weight.shape)
    channel = o // (outputs // step.groups) * depth + c
    rows = (ky * step.dilation[0] - step.padding[0]) * source.row
    columns = (kx * step.dilation[1] - step.padding[1]) * source.lanes
    visit = c // -(-depth // blocks) * outputs + o
    offsets = channel * source.channel + rows + columns
    return _stream(step, visit, blocks * outputs, 1, multipliers, offsets)


def int_small_stream(step: Conv, multipliers: Integers, source: Storage, blocks: int) -> NDArray[np.int32]:
    """The same for small images: nine counts per visit, and the entries of each position in the kernel."""
    outputs, depth = step.weight.shape[:2]
    o, c, position = np.unravel_index(step.weight.places, (outputs, depth, POSITIONS))
    visit = c // -(-depth // blocks) * outputs + o
    parts = blocks * outputs * POSITIONS
    return _stream(step, POSITIONS * visit + position, parts, POSITIONS, multipliers, c * source.channel)


def _stream(
    step: Conv, part: Integers, parts: int, counted: int, multipliers: Integers, offsets: Integers
) -> NDArray[np.int32]:
    """Entries, sorted by their part; before each `counted` parts, how many entries these have."""
    order = np.argsort(part, kind="stable")
    counts = np.bincount(part, minlength=parts).reshape(-1, counted)
    sizes = 2 * counts.sum(1) + counted
    made = np.empty(int(sizes.sum()), np.int32)
    made[(np.cumsum(sizes) - sizes)[:, None] + np.arange(counted)] = int32(counts, f"layer {step.name!r}")
    at = counted * (part[order] // counted + 1) + 2 * np.arange(order.size)
    low = multipliers[order] & 0xFFFF
    made[at] = (low | low << 16).astype(np.uint32).view(np.int32)
    made[at + 1] = int32(ELEMENT * offsets[order], f"layer {step.name!r}")
    return made
