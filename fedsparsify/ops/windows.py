"""Windows that slide over an image: what convolutions and pools have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .base import Floats, Side

Pair = Sequence[int]


def counts(sides: Sequence[Side], spans: Pair, strides: Pair, paddings: Pair, ceil: bool = False) -> tuple[Side, Side]:
    """How many windows fit along each axis; with `ceil` one more may go over the edge, if it begins before it."""
    found: list[Side] = []
    for side, span, stride, padding in zip(sides, spans, strides, paddings, strict=True):
        if side is None:
            found.append(None)
            continue
        room = side + 2 * padding - span
        if room < 0:
            raise ModelError(f"it needs at least {span} pixels per side. Received: {side} (+{padding}).")
        count = (room + (stride - 1 if ceil else 0)) // stride + 1
        if ceil and (count - 1) * stride >= side + padding:
            count -= 1  # a window must begin inside the image or its left padding
        found.append(count)
    return found[0], found[1]


def padded(x: Floats, paddings: Pair, over: Pair, fill: float) -> Floats:
    """Images with a border, which may be wider below and on the right."""
    (top, left), (below, right) = paddings, over
    return np.pad(x, ((0, 0), (0, 0), (top, top + below), (left, left + right)), constant_values=fill)


def sliding(x: Floats, kernel: Pair, strides: Pair, dilation: Pair = (1, 1)) -> NDArray[np.float32]:
    """All windows of padded images, (batch, channels, rows, columns, kernel height, kernel width)."""
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilation[0], :: dilation[1]]


def overhang(sides: Pair, outputs: Pair, kernel: Pair, strides: Pair, paddings: Pair) -> list[int]:
    """By how much the last windows of a pool go over the padded image, (height, width)."""
    windows = zip(sides, outputs, kernel, strides, paddings, strict=True)
    return [max(0, (out - 1) * s + k - side - 2 * p) for side, out, k, s, p in windows]
