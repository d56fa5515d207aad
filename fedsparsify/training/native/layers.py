"""A perceptron in memory as the kernels of `kernels.py` read it, and the records of numbers that describe it to them.

In: the layers, and a flat model. Out: a `Workspace` with that model in panels, and flat vectors again. A panel has
several vectors of outputs (the vectors that are left over have panels of one), one row per input, and the bias as the
last row. Hidden layers are padded to whole vectors with zeros, which training leaves at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...native.lines import zeros

Array = NDArray[Any]
Mask = NDArray[np.bool_]

ROWS = 4  # rows of a batch that are multiplied at a time


def _record(integers: str, floats: str = "") -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in integers.split()] + [(name, np.float32) for name in floats.split()])


# One product: rows, found by a table of their addresses, times panels; row `start` of the panels is added. Sums below
# `floor` become `floor`. With `relu_out` (0: none), the outputs of a ReLU, sums become zero where it was inactive.
PRODUCT = _record("rows depth weights start vectors relu_out out", "floor unused")  # unused: records stay aligned
# The weights of a layer and the gradients of its outputs. `velocity`, `anchor`, `linear` and `squares` have the layout
# of the weights, at an offset of that many bytes (0: there are none). `kept` has one bit per weight, and at least one
# byte per vector (0: all are kept).
LAYER = _record("rows depth vectors outputs biased gradients weights kept velocity anchor linear squares transposed")
EPOCH = _record(
    "count layers forward backward"  # a backward product gives the gradients of the layer before
    " samples stride labels batch ones"  # ones: a table of addresses of the value one, the input of every bias
    " exp_sums margins"  # of each sample of the epoch: Σ e^(logit − top), and top − the logit of its class
    " rates decays",  # the learning rate of each step of the epoch; decays: 1 or 0
    "momentum nesterov prox decay smoothing unused",  # nesterov: 1 or 0; smoothing: of labels
)


def panel_vectors(lanes: int) -> int:
    """Vectors per wide panel: four rows of sums, and their factors, fit the registers."""
    return 2 if lanes == 8 else 4


def vectors_of(values: int, lanes: int) -> int:
    """Vectors that hold that many values."""
    return -(-values // lanes)


def fill(record: Any, **values: float) -> None:
    """Set fields of a record."""
    for name, value in values.items():
        record[name] = value


@dataclass(frozen=True)
class Linear:
    """One layer of a perceptron."""

    inputs: int
    outputs: int
    weight: int  # where its weights begin in the flat model, (outputs, inputs)
    bias: int | None
    relu: bool  # whether a ReLU follows


class Workspace:
    """The memory for one model in training: its weights, what belongs to each weight, and what a batch needs."""

    def __init__(self, layers: Sequence[Linear], batch: int, lanes: int) -> None:
        self._lanes, self._rows = lanes, -(-batch // ROWS) * ROWS
        self._held: list[Array] = []
        vectors = [vectors_of(layer.outputs, lanes) for layer in layers]
        depths = [layers[0].inputs, *(lanes * many for many in vectors[:-1])]
        starts = np.cumsum(
            [0, *((depth + 1) * many for depth, many in zip(depths, vectors, strict=True))]
        )  # in vectors
        self._positions = _positions(layers, depths, starts, lanes)
        self._weights = zeros(int(starts[-1]) * lanes)
        self._extras: dict[str, Array] = {}
        self._kept = zeros(int(starts[-1]) * max(1, lanes // 8), np.uint8)
        self._kept_at = _at(self._kept) + starts[:-1] * max(1, lanes // 8)
        self._layers = np.zeros(len(layers), LAYER)
        forward, backward = np.zeros(len(layers), PRODUCT), np.zeros(len(layers), PRODUCT)
        rows = self._keep(np.zeros(self._rows, np.int64))
        for k, layer in enumerate(layers):
            depth, many = depths[k], vectors[k]
            weights, size = _at(self._weights) + 4 * lanes * int(starts[k]), lanes * many
            out, gradients = (self._keep(zeros(self._rows * size)) for _ in range(2))
            floor = 0 if layer.relu else -np.inf
            fill(forward[k], rows=rows, depth=depth, weights=weights, start=depth, vectors=many, out=out, floor=floor)
            fill(self._layers[k], rows=rows, depth=depth, vectors=many, outputs=layer.outputs, gradients=gradients)
            fill(self._layers[k], biased=layer.bias is not None, weights=weights)
            if k:
                transposed = self._layers[k]["transposed"] = self._keep(zeros((size + 1) * depth))
                product, relu_out = backward[k], forward[k - 1]["out"] if layers[k - 1].relu else 0
                fill(product, rows=self._table(gradients, size), depth=layer.outputs, weights=transposed, start=size)
                fill(product, vectors=vectors[k - 1], relu_out=relu_out, floor=-np.inf)
                fill(product, out=self._layers[k - 1]["gradients"])
            rows = self._table(out, size)
        ones = self._table(self._keep(np.ones(1, np.float32)), 0)
        self.epoch = np.zeros((), EPOCH)
        fill(self.epoch, count=len(layers), layers=_at(self._layers), batch=batch, ones=ones)
        fill(self.epoch, forward=self._keep(forward), backward=self._keep(backward))

    def _table(self, start: int, size: int) -> int:
        """A table of the addresses of a batch's rows, each of `size` floats."""
        return self._keep(start + 4 * size * np.arange(self._rows))

    def _keep(self, array: Array) -> int:
        """Keep an array alive as long as this workspace; returns its address."""
        self._held.append(array)
        return _at(array)

    def load(self, values: Array, mask: Mask) -> None:
        """Take over a model's trainable values and its mask."""
        self._store(self._weights, values)
        for field in ("kept", "velocity", "anchor", "linear", "squares"):
            self._layers[field] = 0
        if not mask.all():
            kept = np.ones(self._weights.size, np.bool_)
            kept[self._positions] = mask
            self._kept[:] = np.packbits(kept.reshape(-1, self._lanes), axis=1, bitorder="little").ravel()
            self._layers["kept"] = self._kept_at

    def attach(self, field: str, values: Array | float) -> None:
        """Give every weight a `velocity`, `anchor`, `linear` or `squares`, in the layout of the weights."""
        if field not in self._extras:
            self._extras[field] = zeros(self._weights.size)
        self._store(self._extras[field], values)
        self._layers[field] = _at(self._extras[field]) - _at(self._weights)

    def _store(self, panels: Array, values: Array | float) -> None:
        panels.fill(0)  # the padding too: training that diverged leaves NaN there
        panels[self._positions] = values

    def values(self, field: str = "") -> Array:
        """The weights, or what was attached to them, as a flat vector."""
        return (self._extras[field] if field else self._weights)[self._positions]


def _at(array: Array) -> int:
    return array.ctypes.data


def _positions(layers: Sequence[Linear], depths: Sequence[int], starts: Array, lanes: int) -> Array:
    """The position of each value of the flat model in the panels."""
    found = []
    for layer, depth, start in zip(layers, depths, starts[:-1], strict=True):
        vector, lane = np.divmod(np.arange(layer.outputs)[:, None], lanes)
        wide = panel_vectors(lanes)
        whole = vectors_of(layer.outputs, lanes) // wide * wide
        many = np.where(vector < whole, wide, 1)  # vectors of the panel
        inside = vector % many
        column = lanes * (start + (vector - inside) * (depth + 1) + inside) + lane
        found.append((layer.weight, column + np.arange(layer.inputs) * many * lanes))
        if layer.bias is not None:
            found.append((layer.bias, column + depth * many * lanes))
    return np.concatenate([places.ravel() for _, places in sorted(found, key=lambda pair: pair[0])])
