"""Storage: how one value lies in memory.

Input: a level. Output: a `Storage` per value, as (channels, rows, columns, lanes) with a halo around each lane's block.
The halo holds the pixels of neighbouring blocks, which are copied from lane to lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, prod

from ...errors import ModelError
from ...graph import INPUT
from ..frontend.fusion import Shape
from ..frontend.steps import Conv, Pair, Pool, Step
from .gates import private_gates
from .levels import Level, reach
from .memory_budget import size_of

SMALL = 4  # cells of a block above which the sparse kernel is as fast as a dense product
PIXEL_LANE_WEIGHTS = 32  # per channel, from which writing a halo for them takes less time
PAGE_FLOATS = 1024
WIDE_BORDERS = (2, 3)  # pixels of halos that have code of their own, where the lanes are the blocks of one image
FINEST = {16: (4, 4), 8: (2, 4), 4: (2, 2)}  # grids, by lanes, of one image's blocks
PIXEL_LANE_FLOATS = 1 << 15  # that an entry's offset of 16 bits reaches


@dataclass(eq=False)
class Storage:
    """One value's storage: its block per lane, the halo around it, and the offset of its first float."""

    shape: Shape
    grid: Pair
    block: Pair
    lanes: int
    before: list[int] = field(default_factory=lambda: [0, 0])  # halo above and left
    after: list[int] = field(default_factory=lambda: [0, 0])  # halo below and right
    fill: float = 0.0  # what lies outside of the image
    offset: int = 0
    worker_step: int = 0  # floats from one worker's band, or copy, to the next worker's; 0 where all share one
    bands: int = 1  # of the image's rows, one per worker
    gate: bool = False  # one pixel, which all lanes of an image hold
    pixel_lane: bool = False  # one pixel per lane, read by convolutions that need no halo
    private: bool = False  # each worker computes the whole value, into a copy of its own
    strip: int = 0  # channels that lie in memory at a time; 0 where all do

    @property
    def row(self) -> int:
        """Floats between rows."""
        return (self.block[1] + self.before[1] + self.after[1]) * self.lanes

    @property
    def channel(self) -> int:
        """Floats between channels. Where that were whole pages, all channels' pixels would fall into few cache sets.

        With whole images in lanes, 16 cache lines would do so too.
        """
        floats = (self.block[0] + self.before[0] + self.after[0]) * self.row
        crowded = self.grid == (1, 1) and any(self.before) and floats % (16 * self.lanes) == 0
        pages = self.grid != (1, 1) and floats % PAGE_FLOATS == 0
        return floats + self.lanes if crowded or pages else floats

    @property
    def size(self) -> int:
        """Floats of all channels; the dense kernel, which serves the smallest blocks, writes sixteen at a time."""
        channels = self.strip or self.shape[0]
        return (channels if prod(self.block) > SMALL else -(-channels // 16) * 16) * self.channel

    @property
    def origin(self) -> int:
        """Where the first pixel of the first channel lies, after its halo."""
        return self.offset + self.before[0] * self.row + self.before[1] * self.lanes

    @property
    def samples(self) -> int:
        """Samples that share a vector."""
        return self.lanes // prod(self.grid)

    @property
    def haloed(self) -> bool:
        """Whether lanes must hand pixels to their neighbours, or what lies outside of the image is read."""
        return self.grid != (1, 1) and (any(self.before + self.after) or (self.fill != 0 and self.ragged))

    @property
    def even_border(self) -> bool:
        """Whether lanes are the blocks of one image and the halo is equally wide on all sides."""
        return FINEST.get(self.lanes) == self.grid and len({*self.before, *self.after}) == 1

    @property
    def ragged(self) -> bool:
        """Whether the last blocks reach over the image's border."""
        return any(g * b != side for g, b, side in zip(self.grid, self.block, self.shape[1:], strict=True))


def storages_of(level: Level, shapes: dict[str, Shape], lanes: int, wide: int, pixel_lane: bool) -> dict[str, Storage]:
    """Storage of every value that a level reads or makes; `wide` flat batches lie side by side as columns.

    `pixel_lane`: sparse convolutions read images of one pixel per lane without a halo.
    """
    storages = {}
    for name, block in level.blocks.items():
        channels, rows, columns = shapes[name]
        shape = channels, rows // level.bands, columns
        storages[name] = Storage(shape, level.grid, (block[0], block[1] * wide), lanes, bands=level.bands)
        storages[name].gate = name in level.gates
    for name in private_gates(level.steps, level.gates):
        storages[name].private = level.bands == 1
    for storage in storages.values():
        storage.pixel_lane = pixel_lane
    for step in level.steps:
        for name in step.inputs:
            storages[name].pixel_lane = storages[name].pixel_lane and _reads_without_halo(step, storages[name])
    for step in level.steps:
        # Where a lane holds whole images, a pool's windows are cut at the border; flat values have no border.
        if wide > 1 or not isinstance(step, (Conv, Pool)) or (isinstance(step, Pool) and level.grid == (1, 1)):
            continue
        if step.name in level.gates:
            continue
        source = storages[step.inputs[0]]
        if source.pixel_lane:
            continue
        for axis in (0, 1):
            before, after = reach(step, axis, source.block[axis], storages[step.name].block[axis])
            source.before[axis] = max(source.before[axis], before)
            source.after[axis] = max(source.after[axis], after)
        if isinstance(step, Pool) and not step.mean and (step.ceil or any(step.padding)):
            source.fill = -inf
    for storage in storages.values():
        if level.grid != (1, 1) and storage.before == [1, 1] and max(storage.after) <= 1:
            storage.after = [1, 1]  # the usual halo, which has code of its own
        for border in WIDE_BORDERS:
            if FINEST.get(lanes) == level.grid and storage.before == [border] * 2 and max(storage.after) <= border:
                storage.after = [border] * 2
    return storages


def check_offsets(level: Level, storages: dict[str, Storage]) -> None:
    """Refuse values that offsets of 32 bits do not reach: convolutions count bytes, other steps floats of a channel."""
    streamed = {step.inputs[0] for step in level.steps if isinstance(step, Conv)}
    for name, storage in storages.items():
        if (4 * storage.size if name in streamed else storage.channel) >= 1 << 31:
            shape = " × ".join(f"{side:,}" for side in storage.shape)
            raise ModelError(
                f"{named(name)} ({shape}) takes {size_of(4 * storage.size)} with its border, in one piece, "
                "which offsets of 32 bits do not reach. Give smaller images."
            )


def named(name: str) -> str:
    """A value, for a message."""
    return "the input" if name == INPUT else f"layer {name!r}"


def _reads_without_halo(step: Step, storage: Storage) -> bool:
    """Whether a step is a sparse convolution that may read a value without a halo."""
    pixels = storage.grid != (1, 1) and storage.block == (1, 1) and not storage.ragged and storage.bands == 1
    near = storage.shape[0] * storage.channel < PIXEL_LANE_FLOATS
    few = isinstance(step, Conv) and step.weight.places.size < PIXEL_LANE_WEIGHTS * storage.shape[0]
    return pixels and near and few and isinstance(step, Conv) and step.stride == (1, 1)
