"""Rows of a program: one dataclass per kind of operation; those of convolutions are in `convolution_rows.py`.

`row_writer.py` makes them from steps; `encoding.py` encodes them into the table that the kernels execute. Offsets and
distances count floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, NamedTuple, Self

from ..frontend.steps import Pair
from ..kernels.program_table import Kind
from ..layout.storage import Storage

VIEWS = ("source", "second", "target")  # fields that are a View


class View(NamedTuple):
    """A value in memory: its first pixel, and the distances between channels and between rows."""

    origin: int
    channel: int
    row: int = 0

    @classmethod
    def of(cls, storage: Storage) -> View:
        """A value of the arena."""
        return cls(storage.origin, storage.channel, storage.row)

    def moved(self, channels: int, floats: int = 0) -> View:
        """The view from a later channel on, and some floats further."""
        return self._replace(origin=self.origin + channels * self.channel + floats)


class Clamp(NamedTuple):
    """The range that results are clamped to."""

    low: float = -inf
    high: float = inf


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation of one worker."""

    kind: ClassVar[Kind]
    first_sample: int = 0  # of the block that the row serves; skipped where the batch has fewer


@dataclass(frozen=True, kw_only=True)
class BarrierRow(Row):
    """Wait until the barrier has counted so many arrivals since the run began."""

    kind = Kind.BARRIER
    arrivals: int


@dataclass(frozen=True, kw_only=True)
class ChannelRow(Row):
    """An operation that treats each channel alone, so that workers can divide them."""

    target: View
    channels: int = 0

    def share(self, first: int, last: int, steps: Mapping[str, int]) -> Self:
        """The row for some of the channels, with each of its views moved by so many floats more."""
        views = {name: getattr(self, name).moved(first, steps[name]) for name in VIEWS if hasattr(self, name)}
        return replace(self, channels=last - first, **views)


@dataclass(frozen=True, kw_only=True)
class CopyRow(ChannelRow):
    """Copy runs of floats, by a table of pairs (from, to) for each channel."""

    source: View
    pairs: int  # where the table lies in the indices
    pair_count: int
    pairs_per_sample: int
    run: int  # floats per pair: 1, 2 or 4


@dataclass(frozen=True, kw_only=True)
class PackRow(CopyRow):
    """Input → arena."""

    kind = Kind.PACK


@dataclass(frozen=True, kw_only=True)
class UnpackRow(CopyRow):
    """Arena → output."""

    kind = Kind.UNPACK


@dataclass(frozen=True, kw_only=True)
class MoveRow(CopyRow):
    """Arena → arena, into other lanes."""

    kind = Kind.MOVE
    prefetch: bool = False  # fetch the target's next channel into the cache, one channel ahead


@dataclass(frozen=True, kw_only=True)
class ConstantRow(CopyRow):
    """Constants → arena."""

    kind = Kind.CONSTANT


@dataclass(frozen=True, kw_only=True)
class TransposeRow(ChannelRow):
    """Flat input → arena."""

    kind = Kind.TRANSPOSE
    source: View
    depth: int  # features of a sample
    samples: int


@dataclass(frozen=True, kw_only=True)
class SpreadRow(ChannelRow):
    """Input → arena, where each lane holds a block of one image, at least as wide as a vector."""

    kind = Kind.SPREAD
    source: View
    block: Pair
    offsets: int  # where the byte offsets of the blocks lie in the indices


@dataclass(frozen=True, kw_only=True)
class HaloRow(ChannelRow):
    """Write the border around each lane's block: pixels of the neighbouring blocks, or the fill."""

    kind = Kind.HALO
    block: Pair
    halo: int  # where its widths, masks and outside vectors lie in the indices
    outside_count: int  # vectors of a channel that are partly outside of the image
    frame_rows: int  # rows of the lanes' grid where the halo is one pixel on every side, else 0
    fill: float
    border: int = 0  # pixels on every side, two or three, where lanes are the blocks of one image; else 0


@dataclass(frozen=True, kw_only=True)
class FetchRow(ChannelRow):
    """Copy pixels that another worker wrote."""

    kind = Kind.FETCH
    source: View
    block: Pair
    lane_mask: int  # where the mask of the lanes to copy lies in the indices


@dataclass(frozen=True, kw_only=True)
class PoolRow(ChannelRow):
    """The largest or the mean value of windows, then scale and shift per channel, then a clamp."""

    kind = Kind.POOL
    source: View
    block: Pair
    windows: int  # where first and last rows and columns lie in the indices
    params: int = 0  # where scales, shifts and the factors of means lie
    mean: bool
    squares: bool  # windows are 2 × 2, side by side
    clamp: Clamp


@dataclass(frozen=True, kw_only=True)
class AffineRow(ChannelRow):
    """Scale and shift per channel, then a clamp."""

    kind = Kind.AFFINE
    source: View
    block: Pair
    params: int = 0  # where scales and shifts lie
    clamp: Clamp


@dataclass(frozen=True, kw_only=True)
class AddRow(ChannelRow):
    """The sum of two values, then a clamp."""

    kind = Kind.ADD
    source: View
    second: View
    block: Pair
    clamp: Clamp


@dataclass(frozen=True, kw_only=True)
class ActivationRow(ChannelRow):
    """An activation other than a clamp."""

    kind = Kind.ACTIVATION
    source: View
    block: Pair
    activation: int  # the number of the function in kernels/activations.py
    slope: float


@dataclass(frozen=True, kw_only=True)
class SoftmaxRow(ChannelRow):
    """Softmax over the channels of some pixels."""

    kind = Kind.SOFTMAX
    source: View
    block: Pair
    workspace: int = 0  # where the worker's working memory lies in the arena


@dataclass(frozen=True, kw_only=True)
class NormRow(SoftmaxRow):
    """Zero mean and unit variance over the channels of some pixels, then scale and shift per channel."""

    kind = Kind.NORM
    params: int  # where scales and shifts lie
    eps: float


@dataclass(frozen=True, kw_only=True)
class GateRow(AddRow):
    """The product, or sum, of two values, the second of which may have one pixel; then a clamp."""

    kind = Kind.GATE
    product: bool
    gated: bool


@dataclass(frozen=True, kw_only=True)
class MeanRow(AffineRow):
    """The mean of each image, into every lane of the image; then scale and shift per channel, and a clamp."""

    kind = Kind.MEAN
    lane_mask: int  # where the mask of the cells inside of the image lies in the indices; -1 where all are
    cells: int  # lanes of an image


@dataclass(frozen=True, kw_only=True)
class MatMulRow(ChannelRow):
    """Products of some matrices, times a factor."""

    kind = Kind.MATMUL
    source: View
    second: View
    block: Pair  # of the result
    depth: int
    offsets: int  # where the tables lie in the indices
    slope: float  # the factor
    scratch: int = 0  # where the worker's working memory lies in the arena
