"""Weights of sparse convolutions, packed into the streams that the kernels read.

Input: a convolution and the storage of its input. Output: an array of 32-bit words: counts, weights and byte offsets.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..frontend.steps import Conv, Pair
from ..layout.storage import Storage
from .constants import check_bits, int32

NEAR_BYTES = 40 * 1024  # of input that a tile reads over and over; most of it stays in the first-level cache
SMALL_NEAR_BYTES = 24 * 1024  # the same of small images
PAIRED_DENSITY = 0.08
WORTHWHILE = 10  # weights per visit that pay for fetching and storing a tile's sums
PIXEL_WORTHWHILE = 40  # the same where each weight serves one vector
SMALL_WORTHWHILE = 320  # weights times pixels per visit, where nine loops share them


def pairs_pay(step: Conv, tile: Pair) -> bool:
    """Whether enough neighbours survive, and a tile is large enough, for pairs to be worth two more loops per visit."""
    plain = step.stride == (1, 1) and step.dilation == (1, 1)
    return plain and tile[0] > 1 and step.weight.density > PAIRED_DENSITY


def channel_blocks(step: Conv, tile: Pair, lanes: int) -> int:
    """Into how many blocks to divide the input channels."""
    depth, kh, kw = step.weight.shape[1:]
    sides = [
        (t - 1) * s + (k - 1) * d + 1 for t, s, k, d in zip(tile, step.stride, (kh, kw), step.dilation, strict=True)
    ]
    near = NEAR_BYTES // (sides[0] * sides[1] * lanes * 4)
    weights = PIXEL_WORTHWHILE if tile == (1, 1) else WORTHWHILE
    worthwhile = int(np.ceil(weights / max(step.weight.density * kh * kw, 1e-9)))
    return int(-(-depth // min(max(near, worthwhile, 1), depth)))


def small_blocks(step: Conv, tile: Pair, lanes: int) -> int:
    """Into how many blocks to divide the input channels of small images."""
    depth = step.weight.shape[1]
    pixels = tile[0] * tile[1]
    near = SMALL_NEAR_BYTES // (pixels * lanes * 4)
    worthwhile = int(np.ceil(SMALL_WORTHWHILE / max(step.weight.density * 9 * pixels, 1e-9)))
    return int(-(-depth // min(max(near, worthwhile, 1), depth)))


def sparse_stream(step: Conv, source: Storage, blocks: int, paired: bool) -> NDArray[np.int32]:
    """What the kernel reads: one visit per block of input channels and output channel.

    A visit is three counts, then so many single weights, pairs of horizontal and pairs of vertical neighbours; each
    entry is its one or two weights, then its input's byte offset.
    """
    outputs, depth = step.weight.shape[:2]
    kernels, weights = step.weight.kernels()
    found = [np.argwhere(mask) for mask in find_pairs(weights != 0, paired)]
    entries, kinds = np.concatenate(found), np.repeat(np.arange(3), [len(part) for part in found])
    o, c = np.divmod(kernels[entries[:, 0]], depth)
    visit = c // -(-depth // blocks) * outputs + o
    order = np.argsort(3 * visit + kinds, kind="stable")
    (kernel, ky, kx), o, c, kinds, visit = entries[order].T, o[order], c[order], kinds[order], visit[order]
    channel = step.first_input + o // step.group_outputs * depth + c
    rows = (ky * step.dilation[0] - step.padding[0]) * source.row
    columns = (kx * step.dilation[1] - step.padding[1]) * source.lanes
    words = np.where(kinds == 0, 2, 3)
    at = 3 * (visit + 1) + np.cumsum(words) - words
    counts = np.bincount(3 * visit + kinds, minlength=3 * blocks * outputs).reshape(-1, 3)
    sizes = counts @ [2, 3, 3] + 3
    made = np.empty(int(sizes.sum()), np.int32)
    made[(np.cumsum(sizes) - sizes)[:, None] + np.arange(3)] = int32(counts, f"layer {step.name!r}")
    bits = weights.view(np.int32)
    made[at] = bits[kernel, ky, kx]
    two = kinds > 0
    made[at[two] + 1] = bits[kernel[two], (ky + (kinds == 2))[two], (kx + (kinds == 1))[two]]
    made[at + words - 1] = int32(4 * (channel * source.channel + rows + columns), f"layer {step.name!r}")
    return made


def small_stream(step: Conv, source: Storage, blocks: int) -> NDArray[np.int32]:
    """What the kernel for small images reads: one visit per block of input channels and output channel.

    A visit is nine counts, then the weights of each position in the kernel, each with its input channel's byte offset.
    """
    outputs, depth = step.weight.shape[:2]
    o, c, position = np.unravel_index(step.weight.places, (outputs, depth, 9))
    visit = c // -(-depth // blocks) * outputs + o
    order = np.argsort(9 * visit + position, kind="stable")
    counts = np.bincount(9 * visit + position, minlength=9 * blocks * outputs).reshape(-1, 9)
    sizes = 2 * counts.sum(1) + 9
    made = np.empty(int(sizes.sum()), np.int32)
    made[(np.cumsum(sizes) - sizes)[:, None] + np.arange(9)] = int32(counts, f"layer {step.name!r}")
    at = 9 * (visit[order] + 1) + 2 * np.arange(order.size)
    made[at] = step.weight.values[order].view(np.int32)
    made[at + 1] = int32(4 * c[order] * source.channel, f"layer {step.name!r}")
    return made


def pixel_lane_stream(step: Conv, source: Storage) -> NDArray[np.int32]:
    """What the kernel for one pixel per lane reads: for each output channel a count, then so many entries.

    An entry is a weight, then a number: the offset of what it reads, in floats, and above it the lanes to keep.
    """
    outputs, depth, height, breadth = step.weight.shape
    o, c, ky, kx = np.unravel_index(step.weight.places, (outputs, depth, height, breadth))
    down, right = ky * step.dilation[0] - step.padding[0], kx * step.dilation[1] - step.padding[1]
    (rows, columns), lane = source.grid, np.arange(prod(source.grid))
    y, x = down[:, None] + lane // columns, right[:, None] + lane % columns
    kept = ((y >= 0) & (y < rows) & (x >= 0) & (x < columns)) @ (1 << lane)
    channel = step.first_input + o // step.group_outputs * depth + c
    offsets = channel * source.channel + down * columns + right
    counts = np.bincount(o, minlength=outputs)
    made = np.empty(2 * o.size + outputs, np.int32)
    made[np.arange(outputs) + 2 * (np.cumsum(counts) - counts)] = int32(counts, f"layer {step.name!r}")
    at = o + 1 + 2 * np.arange(o.size)
    made[at] = step.weight.values.view(np.int32)
    check_bits(offsets, 16, f"layer {step.name!r}")  # never exceeded: see storage.PIXEL_LANE_FLOATS
    made[at + 1] = (offsets & 0xFFFF | kept << 16).astype(np.uint32).view(np.int32)
    return made


def find_pairs(alive: NDArray[np.bool_], paired: bool) -> tuple[NDArray[np.bool_], ...]:
    """Weights that stay single, and the first ones of pairs with the right and with the lower neighbour; greedy."""
    single, right, below = alive.copy(), np.zeros_like(alive), np.zeros_like(alive)
    if paired:
        height, width = alive.shape[-2:]
        for y, x in product(range(height), range(width)):
            for found, v, u in ((right, y, x + 1), (below, y + 1, x)):
                if v < height and u < width:
                    found[..., y, x] = single[..., y, x] & single[..., v, u]
                    single[..., v, u] &= ~found[..., y, x]
                    single[..., y, x] &= ~found[..., y, x]
    return single, right, below
