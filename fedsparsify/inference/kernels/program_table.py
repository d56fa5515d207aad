"""The table that the kernels execute: one record per operation, all numbers.

Input: rows of `lowering/rows.py`. Output: the numpy record ROW_RECORD, which the kernels read field by field. Offsets
and distances count floats. Each kind of operation has field names of its own; names on one line are alternatives for
the same word.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Kind(IntEnum):
    """What a row does."""

    PACK = 0  # input → arena
    UNPACK = 1  # arena → output
    MOVE = 2  # arena → arena, into other lanes
    HALO = 3  # write the border around each block
    SPARSE = 4  # a convolution over the weights that are left
    DENSE = 5  # a convolution over all weights
    WINOGRAD = 6  # a 3 × 3 convolution over all weights, by Winograd's transforms
    POOL = 7
    AFFINE = 8  # scale and shift per channel, then a clamp
    ADD = 9
    ACTIVATION = 10
    SOFTMAX = 11
    TRANSPOSE = 12  # flat input → arena
    BARRIER = 13  # wait for the other workers
    SMALL = 14  # a sparse convolution of small images that lie whole in their lanes
    LINEAR = 15  # a sparse linear layer of one sample
    FETCH = 16  # copy what another worker wrote into this worker's storage
    PIXEL_LANE = 17  # a sparse convolution of one image with one pixel per lane
    CONSTANT = 18  # constants → arena
    NORM = 19  # zero mean and unit variance over the channels
    GATE = 20  # a product or sum whose second value may have one pixel
    MEAN = 21  # the mean of each image, into every lane of the image
    MATMUL = 22  # products of matrices that both depend on the input
    POINTWISE = 23  # a sparse 1 × 1 convolution of blocks without a halo
    SPREAD = 24  # input → arena, where each lane holds a block of one image


WORDS: tuple[tuple[str, ...], ...] = (
    ("kind",),
    ("first_sample",),  # of the block that the row serves; the row is skipped where the batch has fewer samples
    ("source",),
    ("second", "workspace"),  # the other summand of ADD; working memory of a convolution
    ("target",),
    ("channels",),  # of the target
    ("depth",),  # channels of the source
    ("source_channel",),
    ("second_channel",),
    ("target_channel",),
    ("source_row",),
    ("second_row",),
    ("target_row",),
    ("rows",),
    ("columns",),
    ("stride_row",),  # source floats between two outputs
    ("stride_column",),
    ("tile", "tile_vectors", "tile_columns", "run", "squares", "gated", "cells", "border"),
    ("input_blocks", "output_blocks"),  # blocks of input channels; blocks of output channels
    ("stream",),
    ("params",),
    ("offsets", "pairs", "halo", "lane_mask", "windows", "places"),  # where a table begins in the program's indices
    ("taps", "vectors", "pair_count", "samples", "outside_count", "factor_count", "arrivals"),
    ("pairs_per_sample", "hardswish"),
    ("pooled", "prefetch", "frame_rows", "mean", "activation", "product"),
    ("corner", "scratch"),  # from the first output's position to the first input that it reads; working memory
)
HALF_WORDS: tuple[tuple[str, ...], ...] = (("low", "fill", "slope", "eps"), ("high",))


def _record() -> np.dtype[np.void]:
    """Eight bytes per word of integers, then four per float."""
    offsets = {name: (np.int64, 8 * at) for at, names in enumerate(WORDS) for name in names}
    start = 8 * len(WORDS)
    floats = {name: (np.float32, start + 4 * at) for at, names in enumerate(HALF_WORDS) for name in names}
    columns = offsets | floats
    kinds, starts = zip(*columns.values(), strict=True)
    size = start + 4 * len(HALF_WORDS)
    return np.dtype({"names": list(columns), "formats": kinds, "offsets": starts, "itemsize": size})


ROW_RECORD = _record()
MATMUL_ROWS, MATMUL_VECTORS = 8, 2  # of the tile of a matrix product
PLANE_GAP = 64  # bytes between the values of two frequencies; without a gap all would fall into one cache set
