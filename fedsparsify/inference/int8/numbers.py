"""The integers of a network: scales, multipliers and bounds that no sum can exceed.

Input: fused steps, whose weights are bytes times a scale per output channel, and the range of each value, as it was
calibrated. Output: integers. A value of channel c stands for value · scale[c]. An output channel's sum is

    bias + Σ (input · multiplier + 2¹⁴) / 2¹⁵, rounded down,

in 16 bits, which wrap around: additions may come in any order, and the scale is chosen so that the final sum fits for
every input that lies in its range.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...model import Floats
from ..frontend.steps import Conv, Pool

Integers: TypeAlias = NDArray[np.int64]
Doubles: TypeAlias = NDArray[np.float64]

HALF, MOST, LEAST = 1 << 14, (1 << 15) - 1, -(1 << 15)
FREE = 8191  # the largest integer of a value whose scale nothing bounds: the input, and what Winograd's transforms give
SMALLEST, LARGEST = 1e-30, 1e30  # scales


@dataclass(frozen=True, eq=False)
class Channels:
    """What a value's integers stand for, per channel: value · scale, between two bounds."""

    scale: Doubles
    low: Integers
    high: Integers

    def repeated(self, times: int) -> Channels:
        """For features, of which each channel has some."""
        return Channels(self.scale.repeat(times), self.low.repeat(times), self.high.repeat(times))


@dataclass(frozen=True, eq=False)
class SumNumbers:
    """The integers of a convolution over the weights that are left."""

    multipliers: Integers  # of each weight
    bias: Integers
    output: Channels


@dataclass(frozen=True, eq=False)
class PoolNumbers:
    """Factor and shift of a pool's results, per channel."""

    factor: Integers
    shift: Integers
    output: Channels


def scaled(value: Integers, factor: Integers) -> Integers:
    """value · factor / 2¹⁵, rounded as the kernels do."""
    return (value * factor + HALF) >> 15


def input_channels(low: Floats, high: Floats) -> Channels:
    """The integers of a value that comes as floats."""
    return _spread(np.asarray(low, np.float64), np.asarray(high, np.float64))


def free_range(step: Conv, low: Floats, high: Floats) -> Channels:
    """The integers of an output whose scale nothing bounds."""
    return _spread(*_clamped(step, low, high))


def sum_numbers(step: Conv, source: Channels, low: Floats, high: Floats) -> SumNumbers:
    """The integers of a convolution whose input and output have known ranges."""
    outputs, depth, *sides = step.weight.shape
    o, c = np.divmod(step.weight.places // prod(sides), depth)
    c = o // max(outputs // step.groups, 1) * depth + c
    count = np.bincount(o, minlength=outputs)
    weights = step.weight.values.astype(np.float64) * source.scale[c]
    ends = np.stack([weights * np.minimum(source.low, 0)[c], weights * np.maximum(source.high, 0)[c]])
    up, down = (np.bincount(o, part, outputs) for part in (ends.max(0), ends.min(0)))
    bias = step.bias.astype(np.float64)
    room = MOST - 2.0 * count - 2
    if room.min(initial=1) <= 0:
        raise ModelError(f"layer {step.name!r}: sums of {count.max():,} products do not fit 16 bits.")
    largest = np.zeros(outputs)
    np.maximum.at(largest, o, np.abs(weights))
    scale = np.maximum.reduce([(up + bias) / room, -(down + bias) / room, np.abs(bias) / room])
    scale = np.maximum(np.maximum(scale, largest * (2 * HALF / MOST)), SMALLEST)
    multipliers = np.rint(weights / scale[o] * (2 * HALF)).astype(np.int64)
    start = np.rint(bias / scale).astype(np.int64)
    _check_sums(step, source, multipliers, start, o, c)
    real = _clamped(step, low, high)
    bounds = [np.clip(np.rint(end / scale), LEAST, MOST).astype(np.int64) for end in real]
    return SumNumbers(multipliers, start, Channels(scale, bounds[0], bounds[1]))


def pool_numbers(step: Pool, source: Channels) -> PoolNumbers:
    """The integers of a 2 × 2 pool with the batch norm after it."""
    channels = source.scale.size
    scale, shift = (part.astype(np.float64) for part in step.affine or (np.ones(channels), np.zeros(channels)))
    ends = np.stack([source.low * source.scale * scale + shift, source.high * source.scale * scale + shift])
    least = np.maximum(np.abs(source.scale * scale) * (2 * HALF / MOST), np.abs(shift) / (MOST // 2))
    unit = np.maximum(np.maximum(least, np.abs(ends).max(0) / (MOST - 2)), SMALLEST)
    factor = np.rint(source.scale * scale / unit * (2 * HALF)).astype(np.int64)
    whole = np.rint(shift / unit).astype(np.int64)
    made = np.sort(np.stack([scaled(end, factor) + whole for end in (source.low, source.high)]), 0)
    if np.abs(made).max(initial=0) > MOST or np.abs(factor).max(initial=0) > MOST:
        raise ModelError(f"layer {step.name!r}: its results do not fit 16 bits.")
    return PoolNumbers(factor, whole, Channels(unit, made[0], made[1]))


def _check_sums(step: Conv, source: Channels, multipliers: Integers, start: Integers, o: Integers, c: Integers) -> None:
    """Refuse sums that 16 bits do not hold, in exact integers."""
    low, high = np.minimum(source.low, 0), np.maximum(source.high, 0)
    ends = np.stack([scaled(low[c], multipliers), scaled(high[c], multipliers)])
    fits = np.abs(multipliers).max(initial=0) <= MOST
    for part in (ends.max(0), ends.min(0)):
        total = start.copy()
        np.add.at(total, o, part)
        fits = fits and total.max(initial=0) <= MOST and total.min(initial=0) >= LEAST
    if not fits:
        raise ModelError(f"layer {step.name!r}: its sums do not fit 16 bits.")


def _clamped(step: Conv, low: Floats, high: Floats) -> tuple[Doubles, Doubles]:
    """The range of a step's results, within its own clamp."""
    bounds = [np.clip(np.asarray(end, np.float64), step.low, step.high) for end in (low, high)]
    return bounds[0], bounds[1]


def _spread(low: Doubles, high: Doubles) -> Channels:
    """Integers of up to `FREE` for a range; a channel that is always zero has a scale like the others'."""
    most = np.maximum(np.abs(low), np.abs(high))
    scale = np.maximum(most, (most.max(initial=0) or 1.0) / FREE) / FREE
    return Channels(scale, np.rint(low / scale).astype(np.int64), np.rint(high / scale).astype(np.int64))
