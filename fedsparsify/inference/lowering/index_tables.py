"""Tables of indices that rows read: pixels of samples, pairs to copy, halos, windows of pools.

Input: the storage of a value. Output: arrays of 32-bit integers for the constant pool.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ..frontend.fusion import Shape
from ..frontend.steps import Pool
from ..layout.storage import WIDE_BORDERS, Storage
from .constants import int32

Integers = NDArray[np.int32]
PIXEL_BYTES = 80  # of a table of pixels, per pixel, while it is made
RUNS = (4, 2)  # floats that are copied at a time, where they stay together


def pixels_of(storage: Storage, samples: int) -> Integers:
    """Where each sample's pixels lie, from the origin of a channel: (samples, pixels)."""
    _, height, width = storage.shape
    y, x, n = np.arange(height)[:, None], np.arange(width), np.arange(samples)[:, None, None]
    by, i = np.divmod(y, storage.block[0])
    bx, j = np.divmod(x, storage.block[1])
    lane = n % storage.lanes * prod(storage.grid) + by * storage.grid[1] + bx
    return int32(i * storage.row + (j + n // storage.lanes) * storage.lanes + lane).reshape(samples, -1)


def batch_pixels(shape: Shape, samples: int) -> Integers:
    """Where each sample's pixels lie in a batch, from the first channel: (samples, pixels)."""
    size, pixels = prod(shape), shape[1] * shape[2]
    return int32(np.arange(samples)[:, None] * size + np.arange(pixels))


class Runs(NamedTuple):
    """Runs of floats to copy: pairs (from, to) of where they begin, sample by sample, and the length of each."""

    pairs: Integers  # (pairs, 2)
    run: int


def runs_of(source: Integers, target: Integers) -> Runs:
    """The runs that copy pixels at `source` to `target`."""
    order = np.argsort(target, axis=1, kind="stable")
    near, there = np.take_along_axis(source, order, 1), np.take_along_axis(target, order, 1)
    for run in RUNS:
        if _together(near, run) and _together(there, run):
            return Runs(np.stack([near[:, ::run].ravel(), there[:, ::run].ravel()], 1), run)
    return Runs(np.stack([source.ravel(), target.ravel()], 1), 1)  # in the given order, which reads line by line


def _together(indices: Integers, run: int) -> bool:
    """Whether indices come in runs of neighbours."""
    count = indices.shape[1]
    return count % run == 0 and bool((indices == indices[:, ::run].repeat(run, 1) + np.arange(count) % run).all())


def inside(storage: Storage) -> Integers:
    """Which cells of a block lie inside of the image, per lane: (rows, columns, lanes)."""
    (rows, columns), lane = storage.grid, np.arange(storage.lanes)
    y = lane // columns % rows * storage.block[0] + np.arange(storage.block[0])[:, None, None]
    x = lane % columns * storage.block[1] + np.arange(storage.block[1])[:, None]
    return int32((y < storage.shape[1]) & (x < storage.shape[2]))


class HaloTable(NamedTuple):
    """What the halo kernel reads, and two facts about it."""

    table: Integers  # widths (above, left, below, right), columns of the grid, four masks, vectors partly outside
    outside_count: int  # vectors of a channel that are partly outside of the image: an offset each, and its mask
    frame_rows: int  # see rows.HaloRow
    border: int  # see rows.HaloRow


def halo_table(storage: Storage) -> HaloTable:
    """The widths of a value's halo, the lanes with a neighbour on each side, and the lanes outside of the image."""
    (rows, columns), lane = storage.grid, np.arange(storage.lanes)
    by, bx = lane // columns % rows, lane % columns
    masks = np.concatenate([by > 0, bx > 0, by < rows - 1, bx < columns - 1])
    i, j = (cell[:, None] for cell in np.divmod(np.arange(prod(storage.block)), storage.block[1]))
    inside = (by * storage.block[0] + i < storage.shape[1]) & (bx * storage.block[1] + j < storage.shape[2])
    offsets = i * storage.row + j * storage.lanes
    outside = np.concatenate([offsets, inside], axis=1)[~inside.all(1)]
    table = int32(np.concatenate([[*storage.before, *storage.after, columns], masks, outside.ravel()]))
    usual = storage.before == storage.after == [1, 1]
    border = storage.before[0] if storage.even_border and storage.before[0] in WIDE_BORDERS else 0
    return HaloTable(table, len(outside), rows if usual else 0, border)


def pool_windows(step: Pool, source: Storage, target: Storage) -> tuple[Integers, Floats]:
    """(first, last + 1) per output row, then per output column; and the factor of a mean, per output.

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
    return np.concatenate(spans), factors.astype(np.float32).ravel()
