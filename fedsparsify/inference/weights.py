"""The weights of a convolution as the engine keeps them: only those that are left."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..model import Floats


@dataclass(frozen=True, eq=False)
class Weights:
    """Values and their places in a flat array of some shape (out, in / groups, kh, kw), in order."""

    shape: tuple[int, int, int, int]
    places: NDArray[np.int64]
    values: Floats

    @classmethod
    def of(cls, dense: Floats) -> Weights:
        """What is not zero of a dense array."""
        flat = dense.reshape(-1)
        places = np.flatnonzero(flat)
        out, depth, height, width = dense.shape
        return cls((out, depth, height, width), places, flat[places])

    def dense(self) -> Floats:
        """All weights, zeros written out."""
        flat = np.zeros(prod(self.shape), np.float32)
        flat[self.places] = self.values
        return flat.reshape(self.shape)

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
