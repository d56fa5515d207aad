"""An integer network in numpy, with 64-bit integers: what the kernels must give to the bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedsparsify.graph import INPUT
from fedsparsify.inference.frontend.steps import Conv, Flatten, Pool
from fedsparsify.inference.int8.network import IntNetwork
from fedsparsify.inference.int8.numbers import SumNumbers
from fedsparsify.inference.int8.winograd_numbers import INPUT as TO_FREQUENCIES
from fedsparsify.inference.int8.winograd_numbers import OUTPUT as FROM_FREQUENCIES

f32 = np.float32


def expected(network: IntNetwork, shapes: Mapping[str, tuple[int, int, int]], batch: np.ndarray) -> np.ndarray:
    """What the network gives for a batch of floats."""
    channels = network.channels[INPUT]
    factor = (1 / channels.scale).astype(f32)[:, None, None]
    ends = [end.astype(f32)[:, None, None] for end in (channels.low, channels.high)]
    with np.errstate(all="ignore"):
        product = batch.reshape(len(batch), *shapes[INPUT]) * factor
    clamped = np.where(product > ends[0], product, ends[0])
    x = np.rint(np.where(clamped < ends[1], clamped, ends[1])).astype(np.int64)
    for step in network.steps:
        x = _step(network, step, x)
        assert np.abs(x).max(initial=0) < 2**15
    scale = network.channels[network.steps[-1].name].scale.astype(f32)
    return x.astype(f32) * scale[:, None, None]


def _step(network: IntNetwork, step: object, x: np.ndarray) -> np.ndarray:
    match step:
        case Flatten():
            return x.reshape(len(x), -1, 1, 1)
        case Pool():
            numbers = network.numbers[step.name]
            rows, columns = x.shape[2] // 2, x.shape[3] // 2
            top = x[:, :, : 2 * rows, : 2 * columns].reshape(*x.shape[:2], rows, 2, columns, 2).max((3, 5))
            return (top * _wide(numbers.factor) + 2**14 >> 15) + _wide(numbers.shift)
        case Conv():
            channels = network.channels[step.name]
            sums = _sums if isinstance(network.numbers[step.name], SumNumbers) else _winograd
            return np.clip(sums(network, step, x), _wide(channels.low), _wide(channels.high))
    raise AssertionError(step)


def _sums(network: IntNetwork, step: Conv, x: np.ndarray) -> np.ndarray:
    numbers, (outputs, depth, height, width) = network.numbers[step.name], step.weight.shape
    padded = np.pad(x, [(0, 0), (0, 0), *((pad, pad) for pad in step.padding)])
    rows, columns = (
        (side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for side, pad, dilation, kernel, stride in zip(
            x.shape[2:], step.padding, step.dilation, (height, width), step.stride, strict=True
        )
    )
    made = np.broadcast_to(_wide(numbers.bias), (len(x), outputs, rows, columns)).copy()
    for place, multiplier in zip(step.weight.places, numbers.multipliers, strict=True):
        o, c, ky, kx = np.unravel_index(place, step.weight.shape)
        c += o // (outputs // step.groups) * depth
        first = ky * step.dilation[0], kx * step.dilation[1]
        rest = padded[:, c, first[0] :: step.stride[0], first[1] :: step.stride[1]][:, :rows, :columns]
        made[:, o] += rest * multiplier + 2**14 >> 15
    assert np.abs(made).max(initial=0) <= 2**15  # what the scales promise
    return made


def _winograd(network: IntNetwork, step: Conv, x: np.ndarray) -> np.ndarray:
    numbers = network.numbers[step.name]
    padded = np.pad(x * _wide(numbers.factors) + 2**14 >> 15, [(0, 0), (0, 0), *((pad, pad) for pad in step.padding)])
    tiles = sliding_window_view(padded, (6, 6), (2, 3))[:, :, ::4, ::4]
    frequencies = np.einsum("fy,nctuyx,gx->nctufg", TO_FREQUENCIES, tiles, TO_FREQUENCIES, optimize=True)
    assert np.abs(frequencies).max(initial=0) < 2**15
    weights = numbers.weights.reshape(6, 6, *numbers.weights.shape[1:])
    sums = np.einsum("fgoc,nctufg->notufg", weights, frequencies, optimize=True)
    assert np.abs(sums).max(initial=0) < 2**31
    outputs = np.einsum("yf,notufg,xg->notyux", FROM_FREQUENCIES, sums >> 10, FROM_FREQUENCIES, optimize=True)
    assert np.abs(outputs).max(initial=0) < 2**31
    n, o, t, y, u, _ = outputs.shape
    real = outputs.reshape(n, o, t * y, u * 4).astype(f32) * _wide(numbers.scale) + _wide(numbers.bias)
    return np.rint(np.clip(real, -(2.0**20), 2.0**20)).astype(np.int64)


def _wide(values: np.ndarray) -> np.ndarray:
    return values[:, None, None]
