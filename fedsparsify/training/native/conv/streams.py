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
from .plan import Convolution
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
        return self.offsets.size >= MANY * self.counts[0].size


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


def _block(inputs: int, density: float, layer: Convolution, plane: Plane) -> int:
    """Input channels per block; depends on the mask alone, as it decides in which order sums are rounded."""
    rows, columns = (min(TILE, side) for side in plane.shape[1:])
    reads = (rows + layer.kernel[2] - 1) * (columns + layer.kernel[3] - 1) * plane.vector
    near = (NEAR_BYTES if rows * columns > 1 else FAR_BYTES) // reads
    worthwhile = VISIT / max(density * layer.kernel[2] * layer.kernel[3], 1e-9)
    block = max(1, near, ceil(min(worthwhile, inputs)))
    return inputs if 2 * block > inputs else block


def _stream(outputs: int, inputs: int, block: int, to: Ints, source: Ints, offsets: Ints, places: Ints,
            pairs: tuple[Ints, Ints] | None = None) -> Stream:
    """Survivors, sorted by `to` and then `source`, in blocks of sources; those of pairs come first."""
    blocks = -(-inputs // block)
    visits = source // block * outputs + to
    first = [np.zeros(0, np.int64)] * 2 if pairs is None else [p[0] for p in pairs]
    if pairs is not None:
        second = [p[1] for p in pairs]
        single = np.ones(to.size, bool)
        for p in (*first, *second):
            single[p] = False
        taken = np.concatenate([np.stack(both, 1).ravel() for both in zip(first, second)] + [np.flatnonzero(single)])
    else:
        taken = np.arange(to.size)
    keys = visits[taken]
    order = taken[np.argsort(keys.astype(np.uint16) if blocks * outputs <= 1 << 16 else keys, kind="stable")]
    kinds = [np.bincount(visits[k], minlength=blocks * outputs) for k in (slice(None), *first)]
    counts = np.stack(kinds).astype(np.int32).reshape(3, blocks, outputs)
    return Stream(inputs, block, counts, offsets[order].astype(np.int32), places[order].astype(np.int32))


def _pairs(to: Ints, source: Ints, down: Ints, right: Ints) -> tuple[tuple[Ints, Ints], ...]:
    """Survivors of the same channels that read neighbouring pixels, side by side or one above the other.

    Each pair is of places among the survivors, the upper or left one first; a survivor belongs to one pair at most.
    """
    if not to.size:
        return ((to, to),) * 2
    axes = [axis - axis.min() for axis in (to, source, down, right)]
    sides = [int(axis.max()) + 1 for axis in axes]
    place = np.full(sides, -1, np.int32)
    place[tuple(axes)] = np.arange(to.size, dtype=np.int32)
    free = place >= 0
    found = []
    for axis in (3, 2):
        pairs = []
        for k in range(sides[axis] - 1):
            first, second = ((slice(None),) * axis + (n,) for n in (k, k + 1))
            both = free[first] & free[second]
            free[first] &= ~both
            free[second] &= ~both
            pairs.append((place[first][both], place[second][both]))
        found.append(tuple(np.concatenate([np.zeros(0, np.int32), *side]) for side in zip(*pairs, strict=True)) or (np.zeros(0, np.int32),) * 2)
    return tuple(found)


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
    inputs, vector = source.shape[0], source.vector
    density = kept.mean() if kept.size else 0.0
    flat = np.flatnonzero(kept)
    o, i, y, x = np.unravel_index(flat, kept.shape)
    i = i + o // (outputs // layer.groups) * per_group
    down, right = (
        (tap * dilation - padding) for tap, dilation, padding in zip((y, x), layer.dilation, layer.padding, strict=True)
    )
    block = _block(inputs, density, layer, source)
    offsets = i * source.channel + down * source.row + right * vector
    pairs = _pairs(o, i % per_group, down, right)
    forward = _stream(outputs, inputs, block, o, i, offsets, np.arange(flat.size), pairs)
    positions = flat[forward.order]
    in_forward = np.empty(flat.size, np.int32)  # from the order of `flat` to the layer's own
    in_forward[forward.order] = np.arange(flat.size)
    forward = replace(forward, order=np.zeros(0, np.int32))
    backward: list[InputGradient] = []
    if layer.inputs[0] in planes.gradients:
        by_input = np.lexsort((o, i)) if layer.groups > 1 else np.argsort(i.astype(np.uint16), kind="stable")
        survivors = tuple(array[by_input] for array in (o, i, y, x, in_forward))
        block = _block(outputs, density, layer, planes.output_gradient(layer))
        backward = _input_gradients(layer, planes, inputs, block, survivors)
    return positions, LayerStreams(start, start + flat.size, forward, tuple(backward))


def _input_gradients(
    layer: Convolution, planes: Planes, inputs: int, block: int, survivors: tuple[Ints, ...]
) -> list[InputGradient]:
    """One stream per phase. A convolution's transpose reads its outputs' gradient with mirrored taps."""
    o, i, y, x, places = survivors
    target, outputs = planes.output_gradient(layer), layer.kernel[0]
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
            offsets = po * target.channel + down[py] * target.row + right[px] * target.vector
            pairs = _pairs(pi, po % (outputs // layer.groups), down[py], right[px])
            stream = _stream(inputs, outputs, block, pi, po, offsets, pp, pairs)
            found.append(InputGradient(rows.count, columns.count, rows.first, columns.first, stream))
    return found


_NEVER = -(1 << 40)


def _table(reads: tuple[tuple[int, int], ...], kernel: int) -> Ints:
    """By tap: the output that the first pixel meets; `_NEVER` for taps of other phases."""
    table = np.full(kernel, _NEVER, np.int64)
    for tap, at in reads:
        table[tap] = at
    return table
