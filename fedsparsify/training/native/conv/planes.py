"""Where values and gradients lie: planes with a border of zeros as wide as the convolutions that read them need.

In: a plan and a vector width. Out: the strides of each plane; with a number of groups, its memory.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....graph import INPUT
from ....native.lines import zeros
from ...graph_layers import Convolution, Shape
from .plan import Plan
from .rows import TILE_COLUMNS, tile_rows


@dataclass(frozen=True)
class Plane:
    """The layout of a value, in bytes: (group, channel, row, column) of vectors, with a border."""

    shape: Shape
    vector: int  # bytes
    border: int = 0  # rows above and below, columns on both sides

    @property
    def row(self) -> int:
        """From a row to the next."""
        return (self.shape[2] + 2 * self.border) * self.vector

    @property
    def channel(self) -> int:
        """From a channel to the next: an odd number of vectors, so that channels do not share the same cache sets."""
        vectors = (self.shape[1] + 2 * self.border) * (self.shape[2] + 2 * self.border)
        return (vectors | 1) * self.vector

    @property
    def group(self) -> int:
        """From a group of images to the next."""
        return self.shape[0] * self.channel

    @property
    def corner(self) -> int:
        """From the plane's begin to its first pixel."""
        return self.border * (self.row + self.vector)

    def memory(self, groups: int) -> NDArray[np.float32]:
        """Zeros for a number of groups; a tile that is wider than what is left of a plane may read on."""
        return zeros((groups * self.group + TILE_COLUMNS * self.vector) // 4)


def taps(side: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """By how many pixels the windows of a convolution go over an axis, on either side."""
    last = (outputs - 1) * stride + (kernel - 1) * dilation - padding
    return max(0, padding, last - (side - 1))


@dataclass(frozen=True)
class Phase:
    """Pixels of one axis of an input that a strided convolution reads by the same taps: every `stride`-th from `first`.

    `reads` has one pair per tap: its place in the kernel, and the output that the first of the pixels meets by it.
    """

    first: int
    count: int
    reads: tuple[tuple[int, int], ...]


def phases(side: int, kernel: int, stride: int, padding: int, dilation: int) -> list[Phase]:
    """The phases of an axis."""
    found = []
    for phase in range(stride):
        first = (phase - padding) % stride
        taken = [(k, first + padding - k * dilation) for k in range(kernel)]
        reads = tuple((k, at // stride) for k, at in taken if at % stride == 0)
        if first < side:
            found.append(Phase(first, -(-(side - first) // stride), reads))
    return found


def conv_sides(layer: Convolution, shapes: dict[str, Shape]) -> list[tuple[int, int, int, int, int, int]]:
    """For each axis: the input's side, the output's before any pool, kernel, stride, padding, dilation."""
    found = []
    for axis in (0, 1):
        side, kernel = shapes[layer.inputs[0]][1 + axis], layer.kernel[2 + axis]
        stride, padding, dilation = layer.stride[axis], layer.padding[axis], layer.dilation[axis]
        outputs = (side + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
        found.append((side, outputs, kernel, stride, padding, dilation))
    return found


def output_shape(layer: Convolution, shapes: dict[str, Shape]) -> Shape:
    """Of a convolution, before any pool."""
    rows, columns = (sides[1] for sides in conv_sides(layer, shapes))
    return layer.kernel[0], rows, columns


class Planes:
    """The planes of a network: of values, of their gradients, and tiles of convolutions' gradients before a pool."""

    def __init__(self, plan: Plan, lanes: int) -> None:
        self.plan, self.vector = plan, 4 * lanes
        borders: dict[str, int] = defaultdict(int)
        gradients: dict[str, int] = defaultdict(int)
        for layer in plan.convolutions:
            for side, outputs, *window in conv_sides(layer, plan.shapes):
                source = layer.inputs[0]
                borders[source] = max(borders[source], taps(side, outputs, *window))
                for phase in phases(side, *window):
                    for _, at in phase.reads:
                        over = max(-at, at + phase.count - outputs, gradients[layer.output])
                        gradients[layer.output] = over
        pooled = {layer.output: (layer.kernel[2] - 1) // 2 for layer in plan.convolutions if layer.pooled}
        made = [INPUT, *(layer.output for layer in plan.layers)]
        self.values = {name: Plane(plan.shapes[name], self.vector, borders[name]) for name in made}
        self.gradients = {
            name: Plane(plan.shapes[name], self.vector, (pooled[name] + 1) // 2 if name in pooled else gradients[name])
            for name in plan.with_gradient
        }
        tile = tile_rows(lanes), TILE_COLUMNS
        self.unpooled = {
            layer.output: Plane((layer.kernel[0], *tile), self.vector, pooled[layer.output])
            for layer in plan.convolutions
            if layer.pooled
        }

    def output_gradient(self, layer: Convolution) -> Plane:
        """What the gradient of a convolution's inputs is computed from."""
        return (self.unpooled if layer.pooled else self.gradients)[layer.output]
