"""Weights as the kernels read them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Floats
from .operations import TILES
from .plan import Place
from .steps import Conv, Pair

NEAR_BYTES = 24 * 1024  # of input that a tile reads over and over; stays in the first-level cache
WORTHWHILE = 10  # weights per visit that pay for fetching and storing a tile's sums


def tile_for(block: Pair, lanes: int) -> int:
    """The tile that covers a block at the least cost: sums to update plus what each weight costs besides."""
    usable = TILES[1:] if lanes == 8 else TILES  # AVX2 has sixteen registers, the others twice that
    fitting = [tile for tile in usable if tile[0] <= block[0] and tile[1] <= block[1]]

    def cost(tile: Pair) -> float:
        return -(-block[0] // tile[0]) * -(-block[1] // tile[1]) * (tile[0] * tile[1] + 2.5)

    return TILES.index(min(fitting, key=cost))


def channel_blocks(step: Conv, tile: Pair, lanes: int) -> int:
    """Into how many blocks to divide the input channels."""
    depth, kh, kw = step.weight.shape[1:]
    sides = [
        (t - 1) * s + (k - 1) * d + 1 for t, s, k, d in zip(tile, step.stride, (kh, kw), step.dilation, strict=True)
    ]
    density = np.count_nonzero(step.weight) / step.weight.size
    near = NEAR_BYTES // (sides[0] * sides[1] * lanes * 4)
    worthwhile = int(np.ceil(WORTHWHILE / max(density * kh * kw, 1e-9)))
    return int(-(-depth // min(max(near, worthwhile, 1), depth)))


def sparse_stream(step: Conv, source: Place, blocks: int) -> NDArray[np.int32]:
    """Per block of input channels and output channel: how many weights, then each with its input's byte offset."""
    outputs, depth = step.weight.shape[:2]
    size = -(-depth // blocks)
    o, c, ky, kx = np.nonzero(step.weight)
    group = c // size * outputs + o
    order = np.argsort(group, kind="stable")
    o, c, ky, kx, group = (part[order] for part in (o, c, ky, kx, group))
    channel = o // (outputs // step.groups) * depth + c
    rows = (ky * step.dilation[0] - step.padding[0]) * source.row
    columns = (kx * step.dilation[1] - step.padding[1]) * source.lanes
    counts = np.bincount(group, minlength=blocks * outputs)
    made = np.empty(counts.size + 2 * o.size, np.int32)
    at = group + 1 + 2 * np.arange(o.size)
    made[np.arange(counts.size) + 2 * (np.cumsum(counts) - counts)] = counts
    made[at] = step.weight[o, c, ky, kx].astype(np.float32).view(np.int32)
    made[at + 1] = 4 * (channel * source.channel + rows + columns)
    return made


def affine_params(affine: tuple[Floats, Floats] | None, channels: int) -> Floats:
    """Scales, then shifts."""
    return np.concatenate(affine or (np.ones(channels, np.float32), np.zeros(channels, np.float32)))
