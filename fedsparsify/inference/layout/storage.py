"""Where each value lies in memory: which pixels and images share a vector, and how the blocks border on each other.

A value is stored as (channels, rows, columns, lanes). The lanes are a grid of spatial blocks, of one image or of
several: with a 4 × 4 grid, lane 5 holds the block in the second row and second column. A 3 × 3 window then needs
aligned loads only, pooling stays inside a lane, and the same kernel serves one image and a batch. Borders between
blocks (the halo) are copied from lane to lane. Deep layers have small images, so the grid becomes coarser on the way
and more images share a vector; at 1 × 1 the lanes are images, and every operation fits. Where a batch meets layers
that kept most of their weights, blocks are twice as wide as high, as Winograd's larger tile is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, prod

from ...errors import ModelError
from ...graph import INPUT
from ..frontend.fusion import Shape
from ..frontend.steps import Add, Affine, Conv, Flatten, Pair, Pool, Step
from .memory import size_of

GRIDS: dict[int, tuple[tuple[Pair, ...], ...]] = {  # of each level: the usual one, the one for wide blocks
    16: (((4, 4), (4, 2)), ((2, 2), (2, 1)), ((1, 1),)),
    8: (((2, 4), (4, 2)), ((2, 2), (2, 1)), ((1, 1),)),
    4: (((2, 2), (2, 1)), ((1, 1),)),
}
DENSE_ENOUGH = 0.2  # density from which Winograd's larger tile takes less time than the weights that are left
COMFORTABLE = 4  # pixels a side of a block under which a batch is better served by a coarser grid
SMALL = 4  # cells of a block over which the sparse kernel is as fast as a dense product
ROUNDINGS = (1, 2, 4, 8)
LONE_WEIGHTS = 32  # that read a channel, from which on writing a halo for them takes less time
LONE_FLOATS = 1 << 15  # that an entry's offset reaches
WASTE = 1.2  # how much longer a block's side may become by rounding


@dataclass
class Place:
    """One value's storage: its block per lane, the halo around it, and the offset of its first float."""

    shape: Shape
    grid: Pair
    block: Pair
    lanes: int
    before: list[int] = field(default_factory=lambda: [0, 0])  # halo above and left
    after: list[int] = field(default_factory=lambda: [0, 0])  # halo below and right
    fill: float = 0.0  # what lies outside of the image
    offset: int = 0
    apart: int = 0  # floats from a worker's band, or copy, to the next one's; 0 where all share one
    bands: int = 1  # of the image's rows, each of a worker's
    lone: bool = False  # a pixel a lane, and read by convolutions that need no halo

    @property
    def row(self) -> int:
        """Floats from a row to the next."""
        return (self.block[1] + self.before[1] + self.after[1]) * self.lanes

    @property
    def channel(self) -> int:
        """Floats from a channel to the next: whole images that lie 16 cache lines apart would crowd into a few sets."""
        floats = (self.block[0] + self.before[0] + self.after[0]) * self.row
        crowded = self.grid == (1, 1) and any(self.before) and floats % (16 * self.lanes) == 0
        return floats + self.lanes if crowded else floats

    @property
    def size(self) -> int:
        """Floats of all channels; the dense kernel, which serves the smallest blocks, writes sixteen at a time."""
        channels = self.shape[0] if prod(self.block) > SMALL else -(-self.shape[0] // 16) * 16
        return channels * self.channel

    @property
    def origin(self) -> int:
        """Where the first pixel of the first channel lies, behind its halo."""
        return self.offset + self.before[0] * self.row + self.before[1] * self.lanes

    @property
    def images(self) -> int:
        """Images that share a vector."""
        return self.lanes // prod(self.grid)

    @property
    def haloed(self) -> bool:
        """Whether lanes must hand pixels to their neighbours, or what lies outside of the image is read."""
        return self.grid != (1, 1) and (any(self.before + self.after) or (self.fill != 0 and self.ragged))

    @property
    def ragged(self) -> bool:
        """Whether the last blocks reach over the image's border."""
        return any(g * b != side for g, b, side in zip(self.grid, self.block, self.shape[1:], strict=True))


@dataclass(frozen=True)
class Level:
    """A run of steps that share a grid, and the block of each value it touches."""

    grid: Pair
    steps: tuple[Step, ...]
    blocks: dict[str, Pair]
    bands: int = 1  # of rows, one a worker


def windows(step: Conv | Pool, axis: int) -> tuple[int, int, int]:
    """Span, stride and padding of a step along an axis."""
    span = (step.weight.shape[2 + axis] - 1) * step.dilation[axis] + 1 if isinstance(step, Conv) else step.kernel[axis]
    return span, step.stride[axis], step.padding[axis]


def reach(step: Conv | Pool, axis: int, block: int, outputs: int) -> Pair:
    """How many pixels before and behind a block `outputs` windows touch."""
    span, stride, padding = windows(step, axis)
    return padding, max(0, (outputs - 1) * stride - padding + span - block)


def levels_of(steps: Sequence[Step], shapes: dict[str, Shape], lanes: int, single: bool) -> list[Level]:
    """Divide the steps into levels, of which each serves as many steps as it can."""
    levels, start = [], 0
    for usual, *others in GRIDS[lanes]:
        level = _level(steps[start:], shapes, usual, single)
        for wide in others:
            if not single and mostly_dense(level.steps, shapes):
                trial = _level(steps[start:], shapes, wide, single)
                level = trial if len(trial.steps) >= len(level.steps) else level
        if level.steps:
            levels.append(level)
        start += len(level.steps)
    return levels


def mostly_dense(steps: Sequence[Step], shapes: dict[str, Shape]) -> bool:
    """Whether most products of some steps belong to layers that Winograd serves."""
    products, dense = 0, 0
    for step in steps:
        if isinstance(step, Conv):
            count = prod(step.weight.shape) * prod(shapes[step.name][1:])
            products += count
            dense += count * winograd_fits(step) * (step.weight.density > DENSE_ENOUGH)
    return 2 * dense > products


def winograd_fits(step: Conv) -> bool:
    """Whether a convolution is of the kind that Winograd's transforms are for."""
    return step.groups == 1 and step.weight.shape[2:] == (3, 3) and step.stride == step.dilation == (1, 1)


def _level(steps: Sequence[Step], shapes: dict[str, Shape], grid: Pair, single: bool) -> Level:
    """As many steps as a grid can serve."""
    least = 1 if single else COMFORTABLE
    trials = [_longest(steps, shapes, grid, rounding, least) for rounding in ROUNDINGS]
    blocks, count = max(trials, key=lambda trial: (trial[1], -sum(map(prod, trial[0].values()))))
    return Level(grid, tuple(steps[:count]), blocks)


def _longest(
    steps: Sequence[Step], shapes: dict[str, Shape], grid: Pair, rounding: int, least: int
) -> tuple[dict[str, Pair], int]:
    """How many steps fit a grid when blocks are rounded up, and their blocks."""
    blocks: dict[str, Pair] = {}
    for count, step in enumerate(steps):
        entering = {name: _block(shapes[name], grid, rounding) for name in step.inputs if name not in blocks}
        if any(b > WASTE * a for n, r in entering.items() for a, b in zip(_block(shapes[n], grid, 1), r, strict=True)):
            return blocks, count
        made = _fit(step, shapes, {name: blocks.get(name) or entering[name] for name in step.inputs}, grid, least)
        if made is None:
            return blocks, count
        blocks |= entering
        blocks[step.name] = made
    return blocks, len(steps)


def _block(shape: Shape, grid: Pair, rounding: int) -> Pair:
    if grid == (1, 1):
        return shape[1:]
    sides = [ceil(side / (g * rounding)) * rounding for side, g in zip(shape[1:], grid, strict=True)]
    return sides[0], sides[1]


def _fit(step: Step, shapes: dict[str, Shape], blocks: dict[str, Pair], grid: Pair, least: int) -> Pair | None:
    """The block that a step gives, or None where it does not fit the grid."""
    block = blocks[step.inputs[0]]
    if grid == (1, 1):
        return shapes[step.name][1:]
    if shapes[step.inputs[0]][1:] == (1, 1):
        return None
    match step:
        case Flatten() | Pool(size=(_, _)):
            return None
        case Pool(mean=True) if step.ceil or (any(step.padding) and not step.count_padding):
            return None
        case Conv() | Pool():
            made = []
            for axis in (0, 1):
                span, stride, _ = windows(step, axis)
                outputs, rest = divmod(block[axis], stride)
                fits = not rest and max(reach(step, axis, block[axis], outputs)) <= block[axis]
                roomy = span == stride or block[axis] >= least
                if not (fits and roomy and grid[axis] * outputs >= shapes[step.name][1 + axis]):
                    return None
                made.append(outputs)
            return made[0], made[1]
        case Add() if block != blocks[step.inputs[1]]:
            return None
    return block


def places_of(level: Level, shapes: dict[str, Shape], lanes: int, wide: int, lone: bool) -> dict[str, Place]:
    """Storage of every value that a level reads or makes; `wide` flat batches lie side by side as columns.

    `lone`: sparse convolutions read images of a pixel a lane without a halo.
    """
    places = {}
    for name, block in level.blocks.items():
        channels, rows, columns = shapes[name]
        shape = channels, rows // level.bands, columns
        places[name] = Place(shape, level.grid, (block[0], block[1] * wide), lanes, bands=level.bands)
    for place in places.values():
        place.lone = lone
    for step in level.steps:
        for name in step.inputs:
            places[name].lone = places[name].lone and _reads_alone(step, places[name])
    for step in level.steps:
        # Where a lane holds whole images, a pool's windows are cut at the border; flat values have no border.
        if wide > 1 or not isinstance(step, (Conv, Pool)) or (isinstance(step, Pool) and level.grid == (1, 1)):
            continue
        source = places[step.inputs[0]]
        if source.lone:
            continue
        for axis in (0, 1):
            before, after = reach(step, axis, source.block[axis], places[step.name].block[axis])
            source.before[axis] = max(source.before[axis], before)
            source.after[axis] = max(source.after[axis], after)
        if isinstance(step, Pool) and not step.mean and (step.ceil or any(step.padding)):
            source.fill = -inf
    return places


def check_reach(level: Level, places: dict[str, Place]) -> None:
    """Refuse values that offsets of 32 bits do not reach: a convolution's count bytes, others floats of a channel."""
    streamed = {step.inputs[0] for step in level.steps if isinstance(step, Conv)}
    for name, place in places.items():
        if (4 * place.size if name in streamed else place.channel) >= 1 << 31:
            shape = " × ".join(f"{side:,}" for side in place.shape)
            raise ModelError(
                f"{named(name)} ({shape}) takes {size_of(4 * place.size)} with its border, in one piece, "
                "which offsets of 32 bits do not reach. Give smaller images."
            )


def named(name: str) -> str:
    """A value, for a message."""
    return "the input" if name == INPUT else f"layer {name!r}"


def _reads_alone(step: Step, place: Place) -> bool:
    """Whether a step is a sparse convolution that may read a value without a halo."""
    pixels = place.grid != (1, 1) and place.block == (1, 1) and not place.ragged and place.bands == 1
    near = place.shape[0] * place.channel < LONE_FLOATS
    plain = isinstance(step, Conv) and step.stride == (1, 1) and step.weight.places.size < LONE_WEIGHTS * place.shape[0]
    return pixels and near and plain


def separate_fills(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Give a largest-value pool that needs -∞ around its input a copy of its own where others need zeros."""
    made: list[Step] = []
    reads, names = Counter(name for step in steps for name in step.inputs), {step.name for step in steps}
    for step in steps:
        shared = reads[step.inputs[0]] > 1
        if isinstance(step, Pool) and shared and not step.mean and (step.ceil or any(step.padding)):
            name = f"{step.name}.input"
            while name in names:
                name += "'"
            names.add(name)
            copy = Affine(name, step.inputs)
            made += [copy, replace(step, inputs=(copy.name,))]
        else:
            made.append(step)
    return tuple(made)


def pools_behind(level: Level, steps: Sequence[Step]) -> dict[str, Pool]:
    """Pools that a convolution may do itself, by its name: nothing else reads what it gives."""
    pools = (step for step in level.steps if isinstance(step, Pool) and step.bare)
    made = {step.name for step in level.steps if isinstance(step, Conv)}
    reads = Counter(name for step in steps for name in step.inputs)
    return {pool.inputs[0]: pool for pool in pools if pool.inputs[0] in made and reads[pool.inputs[0]] == 1}


def inputs_of(level: Level) -> list[str]:
    """Values that a level reads but does not make, the network's input apart."""
    made = {step.name for step in level.steps}
    read = dict.fromkeys(name for step in level.steps for name in step.inputs)
    return [name for name in read if name not in made and name != INPUT]
