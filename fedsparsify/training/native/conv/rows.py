"""The rows of a program: one record of numbers per call of a kernel.

Strides are in bytes. A value is stored as (groups of images, channels, rows, columns, images of the group): one vector
holds one pixel of as many images as it has lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OPERATIONS = (
    "images",  # samples (batch, channels, rows, columns) → a value
    "convolution",  # also of gradients, with the weights transposed
    "weight_gradient",
    "norm",
    "norm_back",
    "max_pool",
    "max_pool_back",
    "mean_pool",
    "mean_pool_back",
    "add",
    "add_back",
    "relu_back",
    "mask",  # zero where a ReLU was inactive
    "multiply",  # two values, as dropout does
    "draw",  # the factors of a dropout
    "copy",
    "clear",
    "permute",  # weights, into the order of another stream
    "logits",  # a value → (batch, classes)
    "logits_back",
)
CODES = {name: code for code, name in enumerate(OPERATIONS)}
# What happens to the sums of a convolution: stored, added to what is there, clamped at zero (with one bit per value, or
# also pooled by 2 × 2 with four), stored where a bit is set; clamped and stored past the caches.
STORE, ADD, RELU, RELU_POOL, MASKED, RELU_STREAMED = range(6)


def tile_rows(lanes: int) -> int:
    """Rows of a tile, for a width of vectors: its sums stay in registers."""
    return 4 if lanes == 16 else 2


TILE_COLUMNS = 4
POOLED_SIZES = (1, 3, 5, 7)  # of the windows of convolutions that may take in a pool

INTEGERS = (
    "op groups channels rows columns batch"  # of what is written
    " x x_group x_channel x_row x_column"
    " y y_group y_channel y_row y_column"
    " z z_group z_channel z_row z_column"  # a third value: a second summand, saved inputs, factors
    " bits bits_group bits_channel bits_row"
    " pool_bits pool_bits_group pool_bits_channel pool_bits_row"  # of the pool in a norm or a convolution
    " spread"  # the window's size, where a tile of x is unpooled from z; else 0
    " fused local"  # fused: the address of a row that goes on with each tile; local: y is that tile, not a plane
    " mode near accumulate relu flat"  # flat: a convolution of one pixel, whose rows are the groups of images
    " by_four"  # whether survivors of a visit are taken four at a time: not where they are few
    " blocks block inputs counts offsets weights gradient bias bias_gradient sums"  # block: input channels in a block
    " survivors order"  # of a permutation
    " prefetched next_row next_column"  # from a tile's corner to what the next tile reads
    " scale shift mean deviation running_mean running_var"
    " fixed"  # a batch norm takes the running moments
    " windows window_rows window_columns"
    " per_image inner outer"
)
FLOATS = "eps momentum factor threshold"
ROW: np.dtype[Any] = np.dtype(
    [(name, np.int64) for name in INTEGERS.split()] + [(name, np.float32) for name in FLOATS.split()]
)
