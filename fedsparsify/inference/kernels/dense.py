"""Convolutions over all weights, for layers that kept most of theirs: a register-tiled product."""

from __future__ import annotations

from typing import Any

from ...native.compiled import compiled, inlined
from .dense_simd import dense_tile

ONE, TWO, EIGHT, SIXTEEN = (0,), (0,) * 2, (0,) * 8, (0,) * 16


@inlined
def dense(width: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    """Sixteen output channels by one vector, or eight by two, at a time."""
    if op.tile_vectors == 1:
        _dense(width, SIXTEEN, ONE, op, arena, params, indices)
    else:
        _dense(width, EIGHT, TWO, op, arena, params, indices)


@compiled
def _dense(width: Any, outputs: Any, vectors: Any, op: Any, arena: Any, params: Any, indices: Any) -> None:
    offsets, many = indices + 4 * op.offsets, len(outputs)
    for i in range(op.rows):
        for j in range(0, op.columns, len(vectors)):
            x = arena + 4 * (op.source + i * op.stride_row + j * op.stride_column)
            out = arena + 4 * (op.target + i * op.target_row + j * len(width))
            bias = params + 4 * op.params
            weights = bias + 4 * op.output_blocks * many
            for _ in range(op.output_blocks):
                step = 4 * op.stride_column
                dense_tile(
                    width,
                    outputs,
                    vectors,
                    x,
                    step,
                    offsets,
                    weights,
                    op.taps,
                    bias,
                    out,
                    4 * op.target_channel,
                    op.low,
                    op.high,
                )
                weights += 4 * op.taps * many
                bias += 4 * many
                out += 4 * many * op.target_channel
