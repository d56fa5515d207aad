"""A convolution packed for its kernel: the row and the constants that it reads.

Input: a convolution, or a worker's part of one, the kernel chosen for it, and the storage of its input and output.
Output: a `PackedLayer`, whose row still lacks the offsets of its constants and working memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ..frontend.steps import Conv, Pair
from ..kernels.program_table import PLANE_GAP, Kind
from ..kernels.tiles import TILES, line_tile, tile_for
from ..kernels.winograd_numbers import factors, frequencies, of_weights
from ..layout.storage import Storage
from .constants import int32
from .convolution_rows import (
    ConvolutionRow,
    DenseRow,
    LinearRow,
    PixelLaneRow,
    PointwiseRow,
    PoolingRow,
    SmallRow,
    SparseRow,
    WinogradRow,
)
from .kernel_choice import KernelChoice, is_pointwise
from .rows import Clamp, View
from .weight_streams import pixel_lane_stream, small_stream, sparse_stream


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """A convolution packed for one kernel."""

    row: ConvolutionRow  # without the offsets of its constants and working memory
    params: Floats  # bias first
    workspace: int  # floats of working memory
    stream: NDArray[np.int32] | None = None  # packed weights of the sparse kernels
    offsets: NDArray[np.int32] | None = None  # of the inputs, for the dense kernels
    places: NDArray[np.int32] | None = None  # of the outputs, for 1 × 1 convolutions

    def with_pool(self, scale: Floats, shift: Floats, target: View) -> PackedLayer:
        """The same with the pool after it, which writes to `target`; scale and shift go after the bias."""
        assert isinstance(self.row, PoolingRow)
        bias, rest = np.split(self.params, [scale.size])
        row = replace(self.row, pooled=True, target=target)
        return replace(self, row=row, params=np.concatenate([bias, scale, shift, rest]))

    def with_hardswish(self) -> PackedLayer:
        """The same with the activation after it, to whose storage it writes."""
        assert isinstance(self.row, (SparseRow, PointwiseRow))
        return replace(self, row=replace(self.row, hardswish=True))


def pack(choice: KernelChoice, step: Conv, source: Storage, target: Storage) -> PackedLayer:
    """A convolution, or a part of one, packed for the chosen kernel."""
    match choice.kind:
        case Kind.SPARSE:
            return _sparse(choice, step, source, target)
        case Kind.POINTWISE:
            return _pointwise(choice, step, source, target)
        case Kind.SMALL:
            return _small(choice, step, source, target)
        case Kind.LINEAR:
            return _linear(step, source, target)
        case Kind.PIXEL_LANE:
            return _pixel_lane(step, source, target)
        case Kind.DENSE:
            return _dense(step, source, target)
        case _:
            return _winograd(choice, step, source, target)


def packing_bytes(choice: KernelChoice, step: Conv, lanes: int) -> int:
    """Memory that `pack` takes at the most, with all intermediate arrays."""
    outputs, depth, *sides = step.weight.shape
    left, area, visits = step.weight.places.size, prod(sides), choice.input_blocks * outputs
    match choice.kind:
        case Kind.DENSE:
            return 20 * (outputs + 15) * (depth * area + 1) + 64 * depth * area + 24 * left
        case Kind.WINOGRAD:
            planes = frequencies(choice.tile_columns)
            return planes * (outputs + 15) * (depth + 1) * 36 + 108 * outputs * depth + 24 * left
        case Kind.PIXEL_LANE:
            return (64 * lanes + 128) * left + 64 * outputs
        case Kind.SMALL:
            return 256 * left + 320 * visits
    return 320 * left + 12 * min(left, outputs * depth) * area + 160 * visits


def _sparse(choice: KernelChoice, step: Conv, source: Storage, target: Storage) -> PackedLayer:
    tile = tile_for(target.block, source.lanes, step.stride)
    row = SparseRow(
        source=View.of(source),
        target=View.of(target),
        channels=step.weight.shape[0],
        block=target.block,
        stride=_strides(step, source),
        tile=tile,
        input_blocks=choice.input_blocks,
        clamp=Clamp(step.low, step.high),
    )
    workspace = prod(TILES[tile]) * step.weight.shape[0] * source.lanes
    return PackedLayer(row, step.bias, workspace, sparse_stream(step, source, choice.input_blocks, choice.paired))


def _pointwise(choice: KernelChoice, step: Conv, source: Storage, target: Storage) -> PackedLayer:
    assert is_pointwise(step, source)
    vectors = prod(source.block)
    tile = line_tile(vectors, source.lanes)
    row = PointwiseRow(
        source=View.of(source),
        target=View.of(target),
        channels=step.weight.shape[0],
        vectors=vectors,
        tile_vectors=tile,
        input_blocks=choice.input_blocks,
        clamp=Clamp(step.low, step.high),
    )
    i, j = np.divmod(np.arange(vectors), target.block[1])
    places = int32(4 * (i * target.row + j * target.lanes), f"layer {step.name!r}")
    workspace = tile * step.weight.shape[0] * source.lanes
    stream = sparse_stream(step, source, choice.input_blocks, paired=False)
    return PackedLayer(row, step.bias, workspace, stream, places=places)


def _small(choice: KernelChoice, step: Conv, source: Storage, target: Storage) -> PackedLayer:
    row = SmallRow(
        source=View.of(source),
        target=View.of(target),
        channels=step.weight.shape[0],
        block=target.block,
        input_blocks=choice.input_blocks,
        clamp=Clamp(step.low, step.high),
    )
    workspace = prod(target.block) * step.weight.shape[0] * source.lanes
    return PackedLayer(row, step.bias, workspace, small_stream(step, source, choice.input_blocks))


def _linear(step: Conv, source: Storage, target: Storage) -> PackedLayer:
    outputs, depth = step.weight.shape[:2]
    clamp = Clamp(step.low, step.high)
    row = LinearRow(source=View.of(source), target=View.of(target), channels=outputs, depth=depth, clamp=clamp)
    gathered = Storage((depth, 1, 1), (1, 1), (1, 1), lanes=1)  # the inputs, side by side in the workspace
    return PackedLayer(row, step.bias, depth, sparse_stream(step, gathered, 1, paired=False))


def _pixel_lane(step: Conv, source: Storage, target: Storage) -> PackedLayer:
    outputs, clamp = step.weight.shape[0], Clamp(step.low, step.high)
    row = PixelLaneRow(source=View.of(source), target=View.of(target), channels=outputs, clamp=clamp)
    return PackedLayer(row, step.bias, 0, pixel_lane_stream(step, source))


def _dense(step: Conv, source: Storage, target: Storage) -> PackedLayer:
    outputs = step.weight.shape[0]
    vectors = 2 if target.block[1] % 2 == 0 else 1
    many = 16 // vectors
    blocks = -(-outputs // many)
    rows = np.zeros((blocks * many, prod(step.weight.shape[1:])), np.float32)
    rows[:outputs] = step.weight.dense().reshape(outputs, -1)
    bias = np.zeros(blocks * many, np.float32)
    bias[:outputs] = step.bias
    packed = rows.reshape(blocks, many, -1).transpose(0, 2, 1)
    c, ky, kx = np.indices(step.weight.shape[1:]).reshape(3, -1)
    rows_at = (ky * step.dilation[0] - step.padding[0]) * source.row
    offsets = c * source.channel + rows_at + (kx * step.dilation[1] - step.padding[1]) * source.lanes
    row = DenseRow(
        source=View.of(source),
        target=View.of(target),
        channels=outputs,
        block=target.block,
        stride=_strides(step, source),
        tile_vectors=vectors,
        output_blocks=blocks,
        taps=offsets.size,
        clamp=Clamp(step.low, step.high),
    )
    params = np.concatenate([bias, packed.ravel()])
    return PackedLayer(row, params, 0, offsets=int32(4 * offsets, f"layer {step.name!r}"))


def _winograd(choice: KernelChoice, step: Conv, source: Storage, target: Storage) -> PackedLayer:
    outputs, depth = step.weight.shape[:2]
    planes, many = frequencies(choice.tile_columns), 16
    blocks = -(-outputs // many)
    weights = np.zeros((planes, blocks * many, depth), np.float32)
    turns = of_weights(4), of_weights(choice.tile_columns)
    turned = np.einsum("fy,ocyx,gx->fgoc", turns[0], step.weight.dense().astype(np.float64), turns[1], optimize=True)
    weights[:, :outputs] = turned.reshape(planes, outputs, depth)
    packed = weights.reshape(planes, blocks, many, depth).swapaxes(2, 3)
    table = factors(choice.tile_columns)
    row = WinogradRow(
        source=View.of(source),
        target=View.of(target),
        channels=outputs,
        block=target.block,
        depth=depth,
        corner=-step.padding[0] * source.row - step.padding[1] * source.lanes,
        tile_columns=choice.tile_columns,
        output_blocks=blocks,
        factor_count=len(table),
        clamp=Clamp(step.low, step.high),
    )
    workspace = planes * ((depth + blocks * many) * source.lanes + 2 * PLANE_GAP // 4)
    params = np.concatenate([step.bias, np.array(table, np.float32), packed.ravel()])
    offsets = int32(np.arange(depth) * (4 * source.lanes), f"layer {step.name!r}")
    return PackedLayer(row, params, workspace, offsets=offsets)


def _strides(step: Conv, source: Storage) -> Pair:
    """Floats between the inputs of two outputs, downwards and to the right."""
    return step.stride[0] * source.row, step.stride[1] * source.lanes
