"""Vector code for 3 × 3 convolutions of small images that lie whole in their lanes.

A weight has sixteen products with an image of 4 × 4 pixels. If it is in a corner of the kernel, nine of them meet a
pixel, at an edge twelve; the others meet the border's zeros. So weights are sorted by their position in the kernel, and
each position has code that leaves the border out.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ...native.simd import F32, I32, I64, Emitter, Values, grid, sides
from .sparse_simd import Tile, begin, end, total_of

POSITIONS = 9  # of a kernel


@intrinsic
def small_tile(  # type: ignore[no-untyped-def]
    _, width, rows, columns, x, row, stream, partial, first, last, bias, out, out_row, low, high, a, b
):
    """One output channel of whole images, over one visit of the stream (see weight_streams.small_stream).

    Starts and ends as sparse_simd.sparse_tile does; returns the address after the visit.
    """
    lanes, height, breadth = sides(width, rows, columns)
    tile = height * breadth
    sets = 16 // tile  # of sums, so that neighbouring positions need not wait for each other

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, x, row, stream, partial, first, last, bias, out, out_row, low, high, a, b = args
        e = Emitter(builder, lanes)
        scratch = [e.at(partial, t * e.bytes) for t in range(tile)]
        counts = [builder.zext(e.load(e.at(stream, k * 4), I32), I64) for k in range(POSITIONS)]
        sums = [*begin(e, first, bias, scratch), *[e.constant(0.0)] * (tile * (sets - 1))]
        stream = e.at(stream, 4 * POSITIONS)
        for position, (down, right) in enumerate(product((-1, 0, 1), repeat=2)):
            start = position % sets * tile

            def add(state: Values, down: int = down, right: int = right) -> Values:
                """One weight and the offset of its input channel."""
                *totals, at = state
                weight = e.splat(e.load(at, F32))
                base = builder.add(x, builder.sext(e.load(e.at(at, 4), I32), I64))
                cells = grid(e, base, row, ir.Constant(I64, e.bytes), height, breadth)
                for i, j in product(range(height), range(breadth)):
                    if 0 <= i + down < height and 0 <= j + right < breadth:
                        value = e.load(cells[(i + down) * breadth + j + right])
                        totals[i * breadth + j] = e.fma(weight, value, totals[i * breadth + j])
                return [*totals, e.at(at, 8)]

            *sums[start : start + tile], stream = e.loop(counts[position], [*sums[start : start + tile], stream], add)
        sums = total_of(e, sums, tile)
        end(e, last, sums, scratch, Tile(out, out_row, height, breadth, a, b), low, high)
        return stream

    i64, f32 = types.int64, types.float32
    numbers = (i64, i64, i64, i64, i64, i64, f32, i64, i64, f32, f32, f32, f32)
    return i64(width, rows, columns, *numbers), generate
