"""From many models to one: each rule is a fold over a stream of updates that holds one model, not one per client."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError
from .model import Floats, Mask, SparseModel


class Tally:
    """Running sums over models: weighted values, and how many clients kept each entry.

    Sums are float64, so that the order in which answers arrive changes the float32 result at most in its last bit.
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight = 0.0
        self._sum: NDArray[np.float64] = np.zeros(0)
        self._votes: NDArray[np.int32] = np.zeros(0, np.int32)
        self._first: SparseModel | None = None

    def add(self, model: SparseModel, weight: float) -> None:
        """Take one more model in, counting it `weight` times."""
        if not weight > 0:
            raise ModelError(f"a model's weight in the average must be positive. Received: {weight!r}")
        if self._first is None:
            self._first = model
            self._sum = np.zeros(model.layout.total)
            self._votes = np.zeros(model.layout.trainable, np.int32)
        elif model.layout != self._first.layout:
            raise ModelError("models of different layouts cannot be averaged")
        self.count += 1
        self._weight += weight
        self._sum += np.multiply(model.weights, weight, dtype=np.float64)
        self._votes += model.mask

    def mean(self, mask: Mask | None = None) -> SparseModel:
        """The weighted mean, under `mask` or else under the union of all masks; it includes the zeros of others."""
        if self._first is None:
            raise ModelError("there is no model to average")
        weights = (self._sum / self._weight).astype(np.float32)
        return SparseModel.masked(self._first.layout, weights, self._votes > 0 if mask is None else mask)

    def majority(self) -> Mask:
        """Eq. 3: the entries that at least half of the models kept; a tie keeps."""
        return 2 * self._votes >= self.count


class HolderTally(Tally):
    """A tally whose mean of an entry is over the models that hold it, not over all."""

    def __init__(self) -> None:
        super().__init__()
        self._held: NDArray[np.float64] = np.zeros(0)

    def add(self, model: SparseModel, weight: float) -> None:
        """Take one more model in, counting it `weight` times where it holds something."""
        super().add(model, weight)
        if self.count == 1:
            self._held = np.zeros(model.layout.trainable)
        self._held += np.multiply(model.mask, weight, dtype=np.float64)

    def mean(self, mask: Mask | None = None) -> SparseModel:
        """Each entry's mean over its holders; statistics, which everyone holds, over all."""
        mean = super().mean(mask)
        here = mean.mask & (self._held > 0)
        weights = mean.weights.copy()
        weights[: here.size][here] = self._sum[: here.size][here] / self._held[here]
        return SparseModel(mean.layout, weights, mean.mask)


class MeanOf:
    """Running weighted mean of flat arrays, summed in float64."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._sum: NDArray[np.float64] = np.zeros(0)

    def add(self, array: Floats, weight: float) -> None:
        """Take one more array in, counting it `weight` times."""
        if not self._weight:
            self._sum = np.zeros(array.shape)
        self._weight += weight
        self._sum += np.multiply(array, weight, dtype=np.float64)

    @property
    def value(self) -> Floats:
        """The mean of what was taken in."""
        if not self._weight:
            raise ModelError("there are no scores to average")
        return (self._sum / self._weight).astype(np.float32)


def weighted(models: Iterable[SparseModel], weights: Iterable[float]) -> SparseModel:
    """Weighted mean of models; the weights need not sum to one. Its mask is the union of theirs."""
    tally = Tally()
    for model, weight in zip(models, weights, strict=True):
        tally.add(model, weight)
    return tally.mean()


def majority(masks: Iterable[Mask]) -> Mask:
    """Eq. 3: the entries that at least half of the masks keep; a tie keeps."""
    votes, count = None, 0
    for mask in masks:
        votes = mask.astype(np.int32) if votes is None else votes + mask
        count += 1
    if votes is None:
        raise ModelError("there is no mask to vote with")
    return np.asarray(2 * votes >= count)
