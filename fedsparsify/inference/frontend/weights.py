"""The weights of a convolution as the engine keeps them: only those that are left."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...model import Floats, Survivors


@dataclass(frozen=True, eq=False)
class Weights:
    """Values and their places in a flat array of some shape (out, in / groups, kh, kw), in order."""

    shape: tuple[int, int, int, int]
    places: NDArray[np.int64]
    values: Floats

    @classmethod
    def of(cls, tensor: Floats | Survivors) -> Weights:
        """What is not zero of a tensor; one of two dimensions becomes a kernel of 1 × 1."""
        out, depth, height, width = (*tensor.shape, 1, 1)[:4]
        if isinstance(tensor, Survivors):
            alive = tensor.values != 0
            return cls((out, depth, height, width), tensor.places[alive], tensor.values[alive])
        flat = tensor.reshape(-1)
        places = np.flatnonzero(flat)
        return cls((out, depth, height, width), places, flat[places])

    def dense(self) -> Floats:
        """All weights, zeros written out."""
        flat = np.zeros(prod(self.shape), np.float32)
        flat[self.places] = self.values
        return flat.reshape(self.shape)

    def kernels(self) -> tuple[NDArray[np.int64], Floats]:
        """Kernels of which anything is left: their numbers, and their weights as (kernels, kh, kw)."""
        area = self.shape[2] * self.shape[3]
        numbers, rows = np.unique(self.places // area, return_inverse=True)
        weights = np.zeros((numbers.size, area), np.float32)
        weights[rows, self.places % area] = self.values
        return numbers, weights.reshape(-1, *self.shape[2:])

    @property
    def density(self) -> float:
        """Which fraction is left."""
        return self.places.size / max(prod(self.shape), 1)

    def per_output(self) -> NDArray[np.int64]:
        """How many are left for each output channel."""
        return np.bincount(self.places // prod(self.shape[1:]), minlength=self.shape[0])

    def scaled(self, factors: NDArray[np.float64]) -> Weights:
        """Each output channel times a factor."""
        values = self.values * factors[self.places // prod(self.shape[1:])]
        return Weights(self.shape, self.places, values.astype(np.float32))

    def part(self, first: int, last: int) -> Weights:
        """Those of some output channels."""
        size = prod(self.shape[1:])
        some = slice(*np.searchsorted(self.places, [first * size, last * size]))
        return Weights((last - first, *self.shape[1:]), self.places[some] - first * size, self.values[some])
