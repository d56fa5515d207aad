"""The memory of one client's training step.

In: the planes of a network and the largest batch. Out: a `Memory`, whose addresses the rows of a program hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....model import Layout
from ....native.lines import LINE_BYTES, zeros
from ...graph_layers import Dropout
from .planes import Plane, Planes
from .rows import CODES, ROW, TILE_COLUMNS

Array = NDArray[Any]
Place = tuple[Plane, int]  # a plane, and the address of its first pixel
STREAMED_BYTES = 4 << 20  # of a plane that is stored past the caches: it would leave them before it is read


def at(array: Array) -> int:
    """Where an array begins."""
    return array.ctypes.data


def row_of(op: str, shape: tuple[int, int, int] | None = None, **fields: Any) -> Array:
    """A row; x, y and z are places of planes, or addresses."""
    row = np.zeros(1, ROW)
    row["op"] = CODES[op]
    if shape is not None:
        row["channels"], row["rows"], row["columns"] = shape
    for name, value in fields.items():
        if isinstance(value, tuple):
            put_plane(row, name, *value)
        else:
            row[name] = value
    return row


def put_plane(row: Array, field: str, plane: Plane, address: int) -> None:
    """Set which plane a row reads or writes as its x, y or z."""
    row[field] = address
    row[f"{field}_group"], row[f"{field}_channel"] = plane.group, plane.channel
    row[f"{field}_row"], row[f"{field}_column"] = plane.row, plane.vector


class Memory:
    """Values, gradients and what belongs to them, for a number of images at most."""

    def __init__(self, planes: Planes, layout: Layout, batch: int) -> None:
        plan, self._planes = planes.plan, planes
        self.lanes = planes.vector // 4
        self.groups = -(-batch // self.lanes)
        self._held: list[Array] = []
        weights = {layer.weight for layer in plan.convolutions}
        small = [spec for spec in layout.tensors if spec.name not in weights]
        self.small = zeros(max(1, sum(spec.size for spec in small)))  # biases, and what batch norms learn
        ends = np.cumsum([0, *(spec.size for spec in small)])
        self.small_at = {spec.name: 4 * int(end) for spec, end in zip(small, ends[:-1], strict=True)}
        self.statistics = zeros(max(1, layout.total - layout.trainable))
        self.statistics_at = {
            spec.name: 4 * (layout.slices[spec.name].start - layout.trainable) for spec in layout.statistics
        }
        self.values = {name: self._place(plane) for name, plane in planes.values.items()}
        self.spare: list[Place] = []  # where gradients go that find no idle plane
        self.tile = self._keep(zeros(max((plane.group // 4 for plane in planes.unpooled.values()), default=1)))
        self._bits: dict[str, int] = {}
        self._factors: dict[str, Place] = {}
        self._moments: dict[str, int] = {}
        widest = max((layer.kernel[0] for layer in plan.convolutions), default=1)
        inputs = max((planes.values[layer.inputs[0]].shape[0] for layer in plan.convolutions), default=1)
        self.sums = self._keep(zeros(max(widest, inputs) * 16 * self.lanes))
        self._constants: dict[tuple[float, int], int] = {}

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(array.nbytes for array in self._held)

    def _place(self, plane: Plane) -> Place:
        return plane, self._keep(plane.memory(self.groups)) + plane.corner

    def gradient(self, plane: Plane, idle: list[Place]) -> Place:
        """Where a gradient goes: the latest of the idle planes that fits, as it may still be in a cache; or a new one.

        A plane fits if its layout is the same, so that borders stay zero.
        """
        for k in reversed(range(len(idle))):
            if idle[k][0] == plane:
                return idle.pop(k)
        self.spare.append(self._place(plane))
        return self.spare[-1]

    def is_large(self, place: Place) -> bool:
        """Whether a value is better stored past the caches."""
        return place[0].group * self.groups > STREAMED_BYTES

    def _keep(self, array: Array) -> int:
        """Keep an array alive as long as this memory; returns its address."""
        self._held.append(array)
        return at(array)

    def put_bits(self, row: Array, name: str, shape: tuple[int, int, int], per_cell: int, field: str = "bits") -> None:
        """Give a row the bits of a value, so many words per pixel."""
        size = per_cell * max(1, self.lanes // 8)
        if name not in self._bits:
            beyond = LINE_BYTES * -(-TILE_COLUMNS * (shape[2] + 1) * size // LINE_BYTES)  # around an image's border
            count = self.groups * int(np.prod(shape)) * size
            self._bits[name] = self._keep(zeros(count + 2 * beyond, np.uint8)) + beyond
        row[field], row[f"{field}_row"] = self._bits[name], shape[2] * size
        row[f"{field}_channel"] = shape[1] * shape[2] * size
        row[f"{field}_group"] = shape[0] * shape[1] * shape[2] * size

    def moments(self, name: str, channels: int) -> int:
        """Where a batch norm keeps the batch's means, and then the inverse deviations."""
        if name not in self._moments:
            self._moments[name] = self._keep(zeros(2 * channels))
        return self._moments[name]

    def constant(self, value: float, count: int) -> int:
        """The same number so many times."""
        if (value, count) not in self._constants:
            self._constants[value, count] = self._keep(np.full(count, value, np.float32))
        return self._constants[value, count]

    def factors(self, layer: Dropout) -> Place:
        """What a dropout multiplies its inputs with."""
        if layer.output not in self._factors:
            plane = Plane(self._planes.plan.shapes[layer.output], self._planes.vector)
            self._factors[layer.output] = plane, self._keep(plane.memory(self.groups))
        return self._factors[layer.output]
