"""1 × 1 convolutions over the weights that are left, on blocks whose vectors lie end to end."""

from __future__ import annotations

from typing import Any

from ...native.compiled import compiled, inlined
from ...native.pointers import floats
from .pointwise_simd import pointwise_tile
from .tiles import LINE_TILE, SHORT_LINE_TILE, TOKEN_TILE

LONG, MIDDLE, SHORT = (0,) * LINE_TILE, (0,) * TOKEN_TILE, (0,) * SHORT_LINE_TILE


@inlined
def pointwise(width: Any, op: Any, arena: Any, stream: Any, params: Any, indices: Any) -> None:
    """Tiles of 16 vectors and, where fewer than nine are left, of eight; or of 13 or 8 only. The last one overlaps."""
    start = 0
    if op.tile_vectors == TOKEN_TILE:
        start = op.vectors
        _lines(width, MIDDLE, op, arena, stream, params, indices, 0, start)
    if op.tile_vectors == LINE_TILE:
        start = op.vectors // LINE_TILE * LINE_TILE
        if op.vectors - start > SHORT_LINE_TILE:
            start += LINE_TILE
        _lines(width, LONG, op, arena, stream, params, indices, 0, start)
    _lines(width, SHORT, op, arena, stream, params, indices, start, op.vectors)


@compiled
def _lines(
    width: Any, vectors: Any, op: Any, arena: Any, stream: Any, params: Any, indices: Any, start: Any, end: Any
) -> None:
    """Tile by tile from a vector to another, a few input channels at a time so that they stay in the nearest cache."""
    count, vector, bias = len(vectors), 4 * len(width), floats(params + 4 * op.params)
    for k in range(start, end, count):
        k = min(k, op.vectors - count)
        x, places, at = arena + 4 * op.source + k * vector, indices + 4 * (op.places + k), stream + 4 * op.stream
        for block in range(op.input_blocks):
            out, partial = arena + 4 * op.target, arena + 4 * op.workspace
            first, last = int(block == 0), int(block == op.input_blocks - 1) * (1 + 2 * op.hardswish)
            for o in range(op.channels):
                at = pointwise_tile(width, vectors, x, at, partial, first, last, bias[o], out, places, op.low, op.high)
                out += 4 * op.target_channel
                partial += count * vector
