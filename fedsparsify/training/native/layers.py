"""How a perceptron lies in memory for the kernels of cpu_kernels.py, and what they are told of it: all numbers.

A layer's weights lie in panels of some vectors of outputs (what is left over in panels of one); a panel has one row an
input, and the bias as the last. Hidden layers are padded to whole vectors with zeros, which training leaves at zero.
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

ROWS = 4  # of a batch that are multiplied at a time


def _record(integers: str, floats: str = "") -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in integers.split()] + [(name, np.float32) for name in floats.split()])


# Rows, found through a table of their addresses, times panels that begin from their row `start`. What is less than
# `low` becomes `low`; where `gate` is given, and holds nothing positive there, it becomes zero instead.
PRODUCT = _record("rows depth weights start vectors gate out", "low unused")  # unused: records stay aligned
# The weights of a layer and the gradient in what it gives. `velocity`, `anchor` and `squares` lie as the weights do, so
# many bytes further (0: there are none). `kept` has a bit a weight, a whole byte at least a vector (0: all are kept).
LAYER = _record("rows depth vectors outputs biased slopes weights kept velocity anchor squares turned")
PLAN = _record(
    "count layers forward backward"  # backward products pass a layer's gradient to the one before
    " samples stride labels batch ones"  # ones: a table of addresses that all lead to a one, which is a bias's input
    " totals gaps",  # of every sample of the epoch: Σ e^(logit − top), and top − the logit of its class
    "rate momentum ahead pull",  # ahead: 1 for Nesterov's
)


def wide_at(lanes: int) -> int:
    """Vectors of a wide panel: four rows of sums, and what is multiplied, fit the registers that there are."""
    return 2 if lanes == 8 else 4


def vectors_of(values: int, lanes: int) -> int:
    """Vectors that hold so many values."""
    return -(-values // lanes)


def fill(record: Any, **values: float) -> None:
    """Some fields of a record."""
    for name, value in values.items():
        record[name] = value


@dataclass(frozen=True)
class Linear:
    """One layer of a perceptron."""

    inputs: int
    outputs: int
    weight: int  # where its weights begin in the flat model, (outputs, inputs)
    bias: int | None
    bent: bool  # by a ReLU


class Memory:
    """One model in training: its weights and what follows them, and what a batch needs."""

    def __init__(self, layers: Sequence[Linear], batch: int, lanes: int) -> None:
        self._lanes, self._rows = lanes, -(-batch // ROWS) * ROWS
        self._held: list[Array] = []
        vectors = [vectors_of(layer.outputs, lanes) for layer in layers]
        depths = [layers[0].inputs, *(lanes * many for many in vectors[:-1])]
        starts = np.cumsum(
            [0, *((depth + 1) * many for depth, many in zip(depths, vectors, strict=True))]
        )  # in vectors
        self._places = _places(layers, depths, starts, lanes)
        self._weights = zeros(int(starts[-1]) * lanes)
        self._more: dict[str, Array] = {}
        self._kept = zeros(int(starts[-1]) * max(1, lanes // 8), np.uint8)
        self._kept_at = _at(self._kept) + starts[:-1] * max(1, lanes // 8)
        self._layers = np.zeros(len(layers), LAYER)
        forward, backward = np.zeros(len(layers), PRODUCT), np.zeros(len(layers), PRODUCT)
        rows = self._keep(np.zeros(self._rows, np.int64))
        for k, layer in enumerate(layers):
            depth, many = depths[k], vectors[k]
            weights, size = _at(self._weights) + 4 * lanes * int(starts[k]), lanes * many
            out, slopes = (self._keep(zeros(self._rows * size)) for _ in range(2))
            low = 0 if layer.bent else -np.inf
            fill(forward[k], rows=rows, depth=depth, weights=weights, start=depth, vectors=many, out=out, low=low)
            fill(self._layers[k], rows=rows, depth=depth, vectors=many, outputs=layer.outputs, slopes=slopes)
            fill(self._layers[k], biased=layer.bias is not None, weights=weights)
            if k:
                turned, gate = self._keep(zeros((size + 1) * depth)), forward[k - 1]["out"] if layers[k - 1].bent else 0
                self._layers[k]["turned"] = turned
                fill(backward[k], rows=self._table(slopes, size), depth=layer.outputs, weights=turned, start=size)
                fill(backward[k], vectors=vectors[k - 1], gate=gate, out=self._layers[k - 1]["slopes"], low=-np.inf)
            rows = self._table(out, size)
        ones = self._table(self._keep(np.ones(1, np.float32)), 0)
        self.plan = np.zeros((), PLAN)
        fill(self.plan, count=len(layers), layers=_at(self._layers), batch=batch, ones=ones)
        fill(self.plan, forward=self._keep(forward), backward=self._keep(backward))

    def _table(self, start: int, size: int) -> int:
        """A table of the addresses of a batch's rows, so many floats each."""
        return self._keep(start + 4 * size * np.arange(self._rows))

    def _keep(self, array: Array) -> int:
        """Hold an array for as long as this lives; its address."""
        self._held.append(array)
        return _at(array)

    def load(self, values: Array, mask: Mask) -> None:
        """Take over a model's trainable values and its mask."""
        self._place(self._weights, values)
        for field in ("kept", "velocity", "anchor", "squares"):
            self._layers[field] = 0
        if not mask.all():
            kept = np.ones(self._weights.size, np.bool_)
            kept[self._places] = mask
            self._kept[:] = np.packbits(kept.reshape(-1, self._lanes), axis=1, bitorder="little").ravel()
            self._layers["kept"] = self._kept_at

    def beside(self, field: str, values: Array | float) -> None:
        """Something that lies as the weights do: `velocity`, `anchor` or `squares`."""
        if field not in self._more:
            self._more[field] = zeros(self._weights.size)
        self._place(self._more[field], values)
        self._layers[field] = _at(self._more[field]) - _at(self._weights)

    def _place(self, panels: Array, values: Array | float) -> None:
        panels.fill(0)  # between the values too, where training that diverged leaves what is no number
        panels[self._places] = values

    def values(self, field: str = "") -> Array:
        """The weights, or something beside them, as a flat model holds them."""
        return (self._more[field] if field else self._weights)[self._places]


def _at(array: Array) -> int:
    return array.ctypes.data


def _places(layers: Sequence[Linear], depths: Sequence[int], starts: Array, lanes: int) -> Array:
    """Where each value of the flat model lies in the panels."""
    found = []
    for layer, depth, start in zip(layers, depths, starts[:-1], strict=True):
        vector, lane = np.divmod(np.arange(layer.outputs)[:, None], lanes)
        wide = wide_at(lanes)
        whole = vectors_of(layer.outputs, lanes) // wide * wide
        many = np.where(vector < whole, wide, 1)  # vectors of the panel
        inside = vector % many
        column = lanes * (start + (vector - inside) * (depth + 1) + inside) + lane
        found.append((layer.weight, column + np.arange(layer.inputs) * many * lanes))
        if layer.bias is not None:
            found.append((layer.bias, column + depth * many * lanes))
    return np.concatenate([places.ravel() for _, places in sorted(found, key=lambda pair: pair[0])])
