"""Rows of convolutions: one dataclass per kernel. `packed_layers.py` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from ..frontend.steps import Pair
from ..kernels.program_table import Kind
from .rows import ChannelRow, Clamp, View


@dataclass(frozen=True, kw_only=True)
class ConvolutionRow(ChannelRow):
    """A convolution, or a worker's part of its output channels, then a clamp."""

    source: View
    params: int = 0  # where the bias, and what else the kernel reads as floats, lies
    workspace: int = 0  # where the worker's working memory lies in the arena
    clamp: Clamp


@dataclass(frozen=True, kw_only=True)
class StreamRow(ConvolutionRow):
    """A convolution over the weights that are left, along a stream of them."""

    stream: int = 0


@dataclass(frozen=True, kw_only=True)
class OffsetsRow(ConvolutionRow):
    """A convolution over all weights, with a table of its inputs' offsets."""

    offsets: int = 0


@dataclass(frozen=True, kw_only=True)
class PoolingRow(ConvolutionRow):
    """A convolution that can include the 2 × 2 pool after it."""

    pooled: bool = False


@dataclass(frozen=True, kw_only=True)
class SparseRow(StreamRow, PoolingRow):
    """Any shape."""

    kind = Kind.SPARSE
    block: Pair
    stride: Pair  # floats between the inputs of two outputs
    tile: int  # the number in kernels/tiles.py
    input_blocks: int  # of input channels
    hardswish: bool = False  # whether it is taken of the outputs


@dataclass(frozen=True, kw_only=True)
class PointwiseRow(StreamRow):
    """1 × 1, on blocks without a halo, whose vectors lie end to end."""

    kind = Kind.POINTWISE
    vectors: int  # of a block
    tile_vectors: int
    places: int = 0  # where the table of the outputs' byte offsets lies in the indices
    input_blocks: int  # of input channels
    hardswish: bool = False  # whether it is taken of the outputs


@dataclass(frozen=True, kw_only=True)
class SmallRow(StreamRow, PoolingRow):
    """3 × 3, on small images that lie whole in their lanes."""

    kind = Kind.SMALL
    block: Pair
    input_blocks: int  # of input channels


@dataclass(frozen=True, kw_only=True)
class LinearRow(StreamRow):
    """A linear layer of one sample."""

    kind = Kind.LINEAR
    depth: int  # input features


@dataclass(frozen=True, kw_only=True)
class PixelLaneRow(StreamRow):
    """On one image with one pixel per lane."""

    kind = Kind.PIXEL_LANE


@dataclass(frozen=True, kw_only=True)
class DenseRow(OffsetsRow):
    """A register-tiled product."""

    kind = Kind.DENSE
    block: Pair
    stride: Pair  # floats between the inputs of two outputs
    tile_vectors: int  # 1 vector by 16 output channels, or 2 by 8
    output_blocks: int  # of as many output channels
    taps: int  # inputs of one output


@dataclass(frozen=True, kw_only=True)
class WinogradRow(OffsetsRow, PoolingRow):
    """3 × 3, by Winograd's transforms."""

    kind = Kind.WINOGRAD
    block: Pair
    depth: int  # input channels
    corner: int  # from the first output's position to the first input that it reads
    tile_columns: int  # 4 or 8
    output_blocks: int  # of 16 output channels
    factor_count: int  # of the transforms
