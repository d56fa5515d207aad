"""3 × 3 convolutions in whole numbers over all weights, by Winograd's transforms (see winograd_simd.py).

`params` hold, for each output channel, scale, bias, low and high as floats, then factors and shifts of the pool; then a
factor for each input channel, one more where their number is odd. `stream` holds the weights as (groups of output
channels, frequencies, blocks of eight, pairs of input channels, eight).
"""

from __future__ import annotations

from typing import Any

from ....native.compiled import compiled
from ....native.pointers import floats, ints
from ...kernels.program_table import PLANE_GAP
from .facts import BLOCKS, FREQUENCIES, OUTPUTS, TILE
from .winograd_simd import pair_in, pair_out, pair_product

ONE, TWO = (0,), (0,) * 2


@compiled
def winograd(width: Any, op: Any, arena: Any, stream: Any, params: Any) -> None:
    """Tiles of four rows and columns; the last ones overlap where the block is no multiple."""
    lanes, vector, many, pairs = len(width), 2 * len(width), op.channels, (op.depth + 1) // 2
    wide, step = 2 * vector * pairs + PLANE_GAP, 2 * vector * OUTPUTS * BLOCKS + PLANE_GAP  # between frequencies
    inputs = arena + 2 * op.workspace
    sums = inputs + FREQUENCIES * wide
    scales, numbers = floats(params + 4 * op.params), ints(params + 4 * op.params)
    factors = params + 4 * (op.params + 6 * many)
    for i in range(0, op.rows, TILE):
        i = min(i, op.rows - TILE)
        for j in range(0, op.columns, TILE):
            j = min(j, op.columns - TILE)
            corner = arena + 2 * (op.source + op.corner + i * op.source_row + j * lanes)
            for pair in range(pairs):
                x = corner + 4 * pair * op.source_channel
                channel = 2 * op.source_channel if 2 * pair + 1 < op.depth else 0
                pair_in(width, x, channel, 2 * op.source_row, inputs + 2 * vector * pair, wide, factors + 8 * pair)
            at = stream + 4 * op.stream
            side = 1 + op.pooled
            out, row = arena + 2 * (op.target + i // side * op.target_row + j // side * lanes), 2 * op.target_row
            for first in range(0, many, OUTPUTS * BLOCKS):
                for f in range(FREQUENCIES):
                    for block in range(BLOCKS):
                        total = sums + f * step + block * OUTPUTS * 2 * vector
                        at = pair_product(width, inputs + f * wide, at, pairs, total)
                for k in range(min(OUTPUTS * BLOCKS, many - first)):
                    o = first + k
                    total, address = sums + k * 2 * vector, out + 2 * o * op.target_channel
                    scale, bias, low, high = scales[o], scales[many + o], scales[2 * many + o], scales[3 * many + o]
                    a, b = int(numbers[4 * many + o]), int(numbers[5 * many + o])
                    if op.pooled:
                        pair_out(width, TWO, total, step, address, row, scale, bias, low, high, a, b)
                    else:
                        pair_out(width, ONE, total, step, address, row, scale, bias, low, high, a, b)
