"""The survivors of a mask in the order in which the kernels walk them.

In: the planes of a network and a flat mask. Out: the positions of all survivors in the flat model, and per convolution
a stream for its outputs and its weights' gradients, and streams for its inputs' gradients (one per phase of a stride).

A stream has blocks of input channels. Within a block the survivors of one output channel follow those of another, so
that a tile's inputs stay in the first-level cache for all output channels; `counts` says how many each has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....model import Layout
from ...graph_layers import Convolution
from .planes import Plane, Planes, conv_sides, phases

Ints = NDArray[Any]
Mask = NDArray[np.bool_]

NEAR_BYTES = 28 << 10  # of a block's inputs: they stay in the first-level cache
FAR_BYTES = 256 << 10  # the same for values of one pixel, of which a visit reads little: in the second-level cache
MANY = 24  # survivors of a visit, on average, from which on they are taken four at a time
VISIT = 12  # survivors that a visit should have at least: it loads and stores a tile of sums
TILE = 4  # rows and columns


@dataclass(frozen=True)
class Stream:
    """The survivors of a convolution, for one kernel."""

    inputs: int
    block: int  # input channels per block
    counts: Ints  # (kinds, blocks, outputs) int32: survivors, pairs side by side, pairs one above the other
    offsets: Ints  # of each survivor: where it reads, in bytes from a tile's corner; int32
    order: Ints  # of each survivor: its place among the survivors of the layer; int32

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return -(-self.inputs // self.block)

    @property
    def by_four(self) -> bool:
        """Whether survivors are taken four at a time: not where visits have few."""
        return bool(self.offsets.size >= MANY * self.counts[0].size)


@dataclass(frozen=True)
class InputGradient:
    """The pixels of one phase of the input, and the stream that gives their gradient."""

    rows: int
    columns: int
    first_row: int
    first_column: int
    stream: Stream


@dataclass(frozen=True)
class LayerStreams:
    """The streams of one convolution; its survivors are a slice of all."""

    start: int
    stop: int
    forward: Stream
    backward: tuple[InputGradient, ...]


def _block(inputs: int, density: float, layer: Convolution, plane: Plane, stride: tuple[int, int] = (1, 1)) -> int:
    """Input channels per block; depends on the mask alone, as it decides in which order sums are rounded."""
    rows, columns = (min(TILE, side) for side in plane.shape[1:])
    reads = ((rows - 1) * stride[0] + layer.kernel[2]) * ((columns - 1) * stride[1] + layer.kernel[3]) * plane.vector
    near = (NEAR_BYTES if rows * columns > 1 else FAR_BYTES) // reads
    worthwhile = VISIT / max(density * layer.kernel[2] * layer.kernel[3], 1e-9)
    block = max(1, near, ceil(min(worthwhile, inputs)))
    return inputs if 2 * block > inputs else block


def _stream(
    size: tuple[int, int, int, int],
    survivors: tuple[Ints, Ints, Ints, Ints, Ints],
    plane: Plane,
    stride: tuple[int, int] = (1, 1),
) -> Stream:
    """A layer's survivors, sorted by block and the channel that is written.

    The size: channels that are written, channels that are read, all and per group, channels in a block. Of each
    survivor: the channel that it writes, the one it reads, from how many pixels below and on the right, and its place.
    """
    to, source, down, right, places = survivors
    outputs, inputs, per_group, block = size
    blocks = -(-inputs // block)
    visits = source // block * outputs + to
    pairs = [even(pair, visits[pair[:, 0]]) for pair in neighbours((to, source % per_group, down, right), stride)]
    single = np.ones(to.size, bool)
    for pair in pairs:
        single[pair] = False
    arranged = np.concatenate([*(pair.ravel() for pair in pairs), np.flatnonzero(single)])
    keys = visits[arranged]
    order = arranged[np.argsort(keys.astype(np.uint16) if blocks * outputs < 1 << 16 else keys, kind="stable")]
    kinds = [visits, *(visits[pair[:, 0]] for pair in pairs)]
    counts = np.array([np.bincount(kind, minlength=blocks * outputs) for kind in kinds], np.int32)
    offsets = source * plane.channel + down * plane.row + right * plane.vector
    return Stream(inputs, block, counts, offsets[order].astype(np.int32), places[order].astype(np.int32))


def neighbours(survivors: tuple[Ints, Ints, Ints, Ints], stride: tuple[int, int]) -> list[Ints]:
    """Survivors of the same channels that read a stride apart: pairs side by side, then one above the other.

    One reads for a pixel what the other reads for the pixel beside it, or below it. A pair is two places among the
    survivors, the left or upper one first. A survivor is in one pair at most.
    """
    none = np.zeros((0, 2), np.int32)
    _, _, down, right = survivors
    if not down.size or (np.ptp(down) == 0 and np.ptp(right) == 0):
        return [none, none]
    axes = tuple(axis - axis.min() for axis in survivors)
    sides = [int(axis.max()) + 1 for axis in axes]
    place, free = np.empty(sides, np.int32), np.zeros(sides, bool)
    place[axes], free[axes] = np.arange(down.size), True
    found = []
    for axis, step in ((3, stride[1]), (2, stride[0])):
        pairs = [none]
        for k in range(sides[axis] - step):
            first, second = ((slice(None),) * axis + (tap,) for tap in (k, k + step))
            both = free[first] & free[second]
            free[first] &= ~both
            free[second] &= ~both
            pairs.append(np.stack([place[first][both], place[second][both]], 1))
        found.append(np.concatenate(pairs))
    return found


def even(pairs: Ints, visits: Ints) -> Ints:
    """Without the last pair of each visit that has an odd number of them, as gradients take two pairs at a time."""
    order = np.argsort(visits, kind="stable")
    ends = np.flatnonzero(np.diff(visits[order], append=-1))
    odd = np.diff(ends, prepend=-1) % 2 == 1
    kept = np.ones(len(pairs), bool)
    kept[order[ends[odd]]] = False
    return pairs[kept]


class Streams:
    """All streams of a mask."""

    def __init__(self, planes: Planes, layout: Layout, mask: Mask) -> None:
        self.layers: dict[str, LayerStreams] = {}
        places = {spec.name: layout.slices[spec.name] for spec in layout.tensors}
        found: list[Ints] = []
        start = 0
        for layer in planes.plan.convolutions:
            kept = mask[places[layer.weight]].reshape(layer.kernel)
            positions, streams = _of_layer(layer, planes, kept, start)
            self.layers[layer.output] = streams
            found.append(places[layer.weight].start + positions)
            start = streams.stop
        self.weights = start  # survivors of weights; those of biases and norms follow
        weights = {layer.weight for layer in planes.plan.convolutions}
        small = [np.arange(place.start, place.stop) for name, place in places.items() if name not in weights]
        rest = np.concatenate([np.zeros(0, np.int64), *small])
        self.small = np.nonzero(mask[rest])[0]  # among all entries of biases and norms, in the layout's order
        self.positions = np.concatenate([*found, rest[self.small]])  # in the flat model, of each survivor
        self.bytes = self.positions.nbytes + sum(
            array.nbytes
            for streams in self.layers.values()
            for stream in (streams.forward, *(part.stream for part in streams.backward))
            for array in (stream.counts, stream.offsets, stream.order)
        )


def _of_layer(layer: Convolution, planes: Planes, kept: Mask, start: int) -> tuple[Ints, LayerStreams]:
    """Positions of a layer's survivors in its weight, in the order of its forward stream, and its streams."""
    outputs, per_group = layer.kernel[:2]
    source = planes.values[layer.inputs[0]]
    inputs = source.shape[0]
    density = kept.mean() if kept.size else 0.0
    flat = np.flatnonzero(kept)
    o, i, y, x = np.unravel_index(flat, kept.shape)
    i = i + o // (outputs // layer.groups) * per_group
    down, right = (
        (tap * dilation - padding) for tap, dilation, padding in zip((y, x), layer.dilation, layer.padding, strict=True)
    )
    size = outputs, inputs, per_group, _block(inputs, density, layer, source, layer.stride)
    forward = _stream(size, (o, i, down, right, np.arange(flat.size)), source, layer.stride)
    positions = flat[forward.order]
    in_forward = np.empty(flat.size, np.int32)  # from the order of `flat` to the layer's own
    in_forward[forward.order] = np.arange(flat.size)
    forward = replace(forward, order=np.zeros(0, np.int32))
    backward: list[InputGradient] = []
    if layer.inputs[0] in planes.gradients:
        by_input = np.lexsort((o, i)) if layer.groups > 1 else np.argsort(i.astype(np.uint16), kind="stable")
        survivors = tuple(array[by_input] for array in (o, i, y, x, in_forward))
        block = _block(outputs, density, layer, planes.output_gradient(layer))
        size = inputs, outputs, outputs // layer.groups, block
        backward = _input_gradients(layer, planes, size, survivors)
    return positions, LayerStreams(start, start + flat.size, forward, tuple(backward))


def _input_gradients(
    layer: Convolution, planes: Planes, size: tuple[int, int, int, int], survivors: tuple[Ints, ...]
) -> list[InputGradient]:
    """One stream per phase. A convolution's transpose reads its outputs' gradient with mirrored taps."""
    o, i, y, x, places = survivors
    target = planes.output_gradient(layer)
    axes = [phases(side, *window) for side, _, *window in conv_sides(layer, planes.plan.shapes)]
    found = []
    for rows in axes[0]:
        for columns in axes[1]:
            down, right = _table(rows.reads, layer.kernel[2]), _table(columns.reads, layer.kernel[3])
            taken = np.flatnonzero((down[y] != _NEVER) & (right[x] != _NEVER))
            if taken.size == o.size:
                taken = np.arange(0)
                po, pi, py, px, pp = o, i, y, x, places
            else:
                po, pi, py, px, pp = (array[taken] for array in survivors)
            stream = _stream(size, (pi, po, down[py], right[px], pp), target)
            found.append(InputGradient(rows.count, columns.count, rows.first, columns.first, stream))
    return found


_NEVER = -(1 << 40)


def _table(reads: tuple[tuple[int, int], ...], kernel: int) -> Ints:
    """By tap: the output that the first pixel meets; `_NEVER` for taps of other phases."""
    table = np.full(kernel, _NEVER, np.int64)
    for tap, at in reads:
        table[tap] = at
    return table
