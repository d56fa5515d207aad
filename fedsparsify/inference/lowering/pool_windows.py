"""Which rows and columns each output of a pool looks at, and what a mean divides by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ..frontend.steps import Pool
from ..layout.storage import Place
from .constants import int32


def pool_windows(step: Pool, source: Place, target: Place) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """(first, behind last) per output row and column, and a factor per output.

    Where lanes are whole images, windows are cut at the border; else they reach into the halo.
    """
    spans, divisors = [], []
    for axis in (0, 1):
        side, outputs = source.shape[1 + axis], target.block[axis]
        index = np.arange(outputs)
        if step.size is not None:
            first, last = index * side // outputs, -(-(index + 1) * side // outputs)
        else:
            first = index * step.stride[axis] - step.padding[axis]
            last = first + step.kernel[axis]
        counted = np.minimum(last, side + step.padding[axis]) - first if source.grid == (1, 1) else last - first
        if source.grid == (1, 1):
            first, last = np.maximum(first, 0), np.minimum(last, side)
        spans.append(int32(np.stack([first, last], 1), f"layer {step.name!r}").ravel())
        divisors.append(counted if step.count_padding and step.size is None else last - first)
    factors = 1 / np.outer(*divisors) if step.mean else np.ones((target.block[0], target.block[1]))
    return spans[0], spans[1], factors.astype(np.float32).ravel()
