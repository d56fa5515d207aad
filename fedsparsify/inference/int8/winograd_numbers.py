"""Winograd's transform F(4 × 4, 3 × 3) in whole numbers: weights of 16 bits, and bounds that no sum can exceed.

Input: a 3 × 3 convolution and the integers of its input. Output: its integers. Frequencies of the weights are scaled
one by one (`WEIGHT`), so that all are about as large; the factors of outputs (`OUTPUT`) undo it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...model import Floats
from ..frontend.steps import Conv
from ..kernels.winograd_numbers import of_weights
from .kernels.facts import SUM_SHIFT
from .numbers import HALF, LARGEST, Channels, Integers, free_range, scaled

MOST_SUM, MOST = 2**31 - 1, 2**15 - 1
INPUT: Integers = np.array(  # a line of six inputs as frequencies
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
WEIGHT = np.array([4, 4, 4, 8, 8, 1])  # factors of the weights' frequencies
OUTPUT: Integers = np.array([[2, 2, 2, 1, 1, 0], [0, 2, -2, 2, -2, 0], [0, 2, 2, 4, 4, 0], [0, 2, -2, 8, -8, 8]])
_MORE, _LESS = np.maximum(INPUT, 0), np.maximum(-INPUT, 0)
UP: Integers = (np.kron(_MORE, _MORE) + np.kron(_LESS, _LESS)).sum(1)  # the positive factors of each frequency
DOWN: Integers = (np.kron(_MORE, _LESS) + np.kron(_LESS, _MORE)).sum(1)
OUTPUT_UNIT = 64  # what the factors of outputs are too large by: 8 each way


@dataclass(frozen=True, eq=False)
class WinogradNumbers:
    """The integers of a convolution."""

    factors: Integers  # of each input channel, in units of 2⁻¹⁵
    weights: Integers  # (36, outputs, depth)
    scale: Floats  # of sums, per output channel
    bias: Floats
    output: Channels


def largest(low: Integers, high: Integers) -> Integers:
    """The largest frequencies of inputs between two bounds, zero among them: (36, channels)."""
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    ends = np.outer(UP, high) - np.outer(DOWN, low), np.outer(DOWN, high) - np.outer(UP, low)
    return np.asarray(np.maximum(*ends))


def winograd_numbers(step: Conv, source: Channels, low: Floats, high: Floats) -> WinogradNumbers:
    """The integers of a convolution whose input and output have known ranges."""
    output = free_range(step, low, high)
    most = largest(source.low, source.high).max(0)
    margin = int((UP + DOWN).max())
    factors = np.minimum((MOST - margin) * 2 * HALF // np.maximum(most, 1), MOST)
    bounds = largest(scaled(source.low, factors), scaled(source.high, factors))
    step_scale = source.scale * 2 * HALF / factors  # of the inputs that are transformed
    turn = of_weights(4) * WEIGHT[:, None]
    weights = np.einsum("fy,ocyx,gx->fgoc", turn, step.weight.dense().astype(np.float64), turn, optimize=True)
    weights = weights.reshape(36, *step.weight.shape[:2]) * step_scale
    sums = (np.abs(weights) * bounds[:, None]).sum(2).max(0)
    room = MOST_SUM - bounds.sum(1).max()
    unit = np.maximum(np.maximum(sums / room, np.abs(weights).max((0, 2)) / MOST), 1e-30)
    whole = np.rint(weights / unit[:, None]).astype(np.int64)
    if bounds.max(initial=0) > MOST or (np.abs(whole) * bounds[:, None]).sum(2).max(initial=0) > MOST_SUM:
        raise ModelError(f"layer {step.name!r}: its sums do not fit 32 bits.")
    scale = unit * (2**SUM_SHIFT / OUTPUT_UNIT) / output.scale
    bias = step.bias / output.scale
    if max(scale.max(initial=0), np.abs(bias).max(initial=0)) > LARGEST:
        raise ModelError(f"layer {step.name!r}: its weights are too large for the range of its results.")
    return WinogradNumbers(factors, whole, scale.astype(np.float32), bias.astype(np.float32), output)


def pairs_of(weights: Integers, outputs: int) -> NDArray[np.int32]:
    """Weights as the kernel reads them: (groups of `outputs`, 36, blocks of eight, pairs of channels, eight)."""
    planes, channels, depth = weights.shape
    padded = np.zeros((planes, -(-channels // outputs) * outputs, -(-depth // 2) * 2), np.int16)
    padded[:, :channels, :depth] = weights
    words = padded.view(np.int32) if np.little_endian else padded.byteswap().view(np.int32)
    made = words.reshape(planes, -1, outputs // 8, 8, padded.shape[2] // 2)
    return np.ascontiguousarray(made.transpose(1, 0, 2, 4, 3)).ravel()
