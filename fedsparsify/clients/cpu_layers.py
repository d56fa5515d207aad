"""How a perceptron lies in memory for the kernels of cpu_kernels.py, and what they are told of it: all numbers.

A layer's weights lie in panels of WIDE (else of one) vectors of outputs, in each panel one row an input and the bias as
the last. Hidden layers are padded to whole vectors with zeros, which training leaves at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ROWS = 4  # of a batch that are multiplied at a time
ALIGNMENT = 64

_LAYER = (
    "depth",  # rows of inputs, padded
    "outputs",
    "vectors",  # of outputs
    "biased",
    "bent",  # a ReLU follows
    "inputs",  # table of the addresses of the batch's rows
    "weights",
    "kept",  # bits of the weights that are not pruned; 0: all are kept
    "out",  # (batch, vectors), what the layer gives
    "slopes",  # (batch, vectors), the loss's gradient in what the layer gives
    "slope_rows",  # table of the addresses of its rows
    "turned",  # panels of the transposed weights, one row an output and one of zeros
)
LAYER = np.dtype([(name, np.int64) for name in _LAYER])
_PLAN = (
    "layers",
    "count",  # of layers
    "samples",  # address of the data set's inputs
    "stride",  # bytes from a sample to the next
    "labels",
    "batch",
    "ones",  # table of addresses that all lead to a one: the bias's inputs
    "totals",  # for every sample of an epoch, the sum of e^(logit − top)
    "gaps",  # and top − the logit of its class
)
PLAN = np.dtype([(name, np.int64) for name in _PLAN] + [("rate", np.float32), ("unused", np.int32)])


def wide_at(lanes: int) -> int:
    """Vectors of a wide panel: four rows by them, and what is multiplied, fit the registers that there are."""
    return 2 if lanes == 8 else 4


@dataclass(frozen=True)
class Linear:
    """One layer of a perceptron."""

    inputs: int
    outputs: int
    weight: int  # where its weights begin in the flat model, (outputs, inputs)
    bias: int | None
    bent: bool


def vectors_of(values: int, lanes: int) -> int:
    """Vectors that hold so many values."""
    return -(-values // lanes)


def zeros(count: int, kind: Any = np.float32) -> NDArray[Any]:
    """Zeros that begin at a cache line."""
    size = count * np.dtype(kind).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind)


class Memory:
    """Memory of one model in training: weights, masks, and what a batch needs."""

    def __init__(self, layers: Sequence[Linear], batch: int, lanes: int) -> None:
        self._lanes, rows = lanes, -(-batch // ROWS) * ROWS
        self.layers = np.zeros(len(layers), LAYER)
        self._held: list[NDArray[Any]] = [one := np.ones(1, np.float32)]
        self.ones = self._keep(np.full(batch, one.ctypes.data))
        depths = [layers[0].inputs, *(vectors_of(layer.outputs, lanes) * lanes for layer in layers[:-1])]
        sizes = [
            (depth + 1) * vectors_of(layer.outputs, lanes) * lanes for depth, layer in zip(depths, layers, strict=True)
        ]
        starts = np.cumsum([0, *sizes])
        self._weights = zeros(int(starts[-1]))
        self._kept = zeros(self._weights.size // lanes * max(1, lanes // 8), np.uint8)
        bytes_each = self._kept.size / self._weights.size
        self._places = np.concatenate(self._placed(layers, depths, starts))
        before = self._keep(np.zeros(rows, np.int64))
        for place, (layer, start) in enumerate(zip(layers, starts[:-1], strict=True)):
            row = self.layers[place]
            vectors = vectors_of(layer.outputs, lanes)
            row["depth"], row["outputs"], row["vectors"] = depths[place], layer.outputs, vectors
            row["biased"], row["bent"] = layer.bias is not None, layer.bent
            row["weights"] = self._weights.ctypes.data + 4 * int(start)
            row["inputs"] = before
            row["out"], before = self._rows(rows, vectors)
            row["slopes"], row["slope_rows"] = self._rows(rows, vectors)
            row["turned"] = self._keep(zeros((vectors * lanes + 1) * depths[place])) if place else 0
        self._kept_at = [self._kept.ctypes.data + round(int(start) * bytes_each) for start in starts[:-1]]

    def _keep(self, array: NDArray[Any]) -> int:
        """Hold an array for as long as this lives; its address."""
        self._held.append(array)
        return array.ctypes.data

    def _rows(self, rows: int, vectors: int) -> tuple[int, int]:
        """A block of rows, and a table of their addresses."""
        size = vectors * self._lanes
        block = self._keep(zeros(rows * size))
        return block, self._keep(block + 4 * size * np.arange(rows))

    def _placed(self, layers: Sequence[Linear], depths: Sequence[int], starts: NDArray[Any]) -> list[NDArray[np.int64]]:
        """Where each value of the flat model lies here, tensor by tensor."""
        found: list[tuple[int, NDArray[np.int64]]] = []
        for layer, depth, start in zip(layers, depths, starts[:-1], strict=True):
            outputs = np.arange(layer.outputs)[:, None]
            vector, lane = outputs // self._lanes, outputs % self._lanes
            wide = wide_at(self._lanes)
            many = np.where(vector < vectors_of(layer.outputs, self._lanes) // wide * wide, wide, 1)  # of the panel
            first = vector - vector % many
            column = start + (first * (depth + 1) + vector % many) * self._lanes + lane
            found.append((layer.weight, (column + np.arange(layer.inputs) * many * self._lanes).ravel()))
            if layer.bias is not None:
                found.append((layer.bias, (column + depth * many * self._lanes).ravel()))
        return [places for _, places in sorted(found, key=lambda pair: pair[0])]

    def load(self, values: Floats, mask: NDArray[np.bool_]) -> None:
        """Take over a model's trainable values and its mask."""
        self._weights[self._places] = values
        self.layers["kept"] = 0
        if not mask.all():
            kept = np.ones(self._weights.size, np.bool_)
            kept[self._places] = mask
            self._kept[:] = np.packbits(kept.reshape(-1, self._lanes), axis=1, bitorder="little").ravel()
            self.layers["kept"] = self._kept_at

    def values(self) -> Floats:
        """The trainable values as a flat model holds them."""
        return self._weights[self._places]
