"""From many models to one. Each rule is a fold over a stream of updates: it holds one model, not one per client."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from . import arrays
from .arrays import Array, BoolArray
from .errors import ModelError
from .model import Floats, Layout, Mask, SparseModel

LARGEST = float(np.finfo(np.float32).max)


class Tally:
    """Running sums over models: weighted values, and how many clients kept each entry.

    Sums are float64, so that the order of the models changes the float32 result in its last bit at most.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel
        >>> from fedsparsify.average import Tally
        >>> sums = Tally()
        >>> sums.add(SparseModel.of({"w": np.ones(2)}), weight=3)
        >>> sums.add(SparseModel.of({"w": np.zeros(2)}), weight=1)
        >>> sums.mean().weights
        array([0.75, 0.75], dtype=float32)
    """

    def __init__(self) -> None:
        self.count = 0
        self._weight = 0.0
        self._sum: Array = np.zeros(0)
        self._votes: Array = np.zeros(0, np.int32)
        self._first: SparseModel | None = None

    def add(self, model: SparseModel, weight: float) -> None:
        """Add a model.

        Args:
            model: of the layout of those before it.
            weight: how often it counts; positive.

        Raises:
            ModelError: if the layout differs, or the weight is not positive.
        """
        if not weight > 0:
            raise ModelError(f"a model's weight in the average must be positive. Received: {weight!r}")
        if self._first is None:
            self._first = model
            self._sum = arrays.filled(model.weights, model.layout.total, 0.0, "float64")
            self._votes = arrays.filled(model.weights, model.layout.trainable, 0, "int32")
        elif model.layout != self._first.layout:
            raise ModelError("models of different layouts cannot be averaged")
        self.count += 1
        self._weight += weight
        arrays.add_scaled(self._sum, model.weights, weight)
        self._votes += model.mask

    def mean(self, mask: BoolArray | None = None) -> SparseModel:
        """The weighted mean of the models so far; entries that a model pruned count as zero.

        Args:
            mask: what the mean keeps; None: the union of the models' masks.

        Returns:
            A model.

        Raises:
            ModelError: if no model was added.
        """
        if self._first is None:
            raise ModelError("there is no model to average")
        weights = arrays.float32(self._sum / self._weight)
        return SparseModel.masked(self._first.layout, weights, self._votes > 0 if mask is None else mask)

    def majority(self) -> BoolArray:
        """The entries that at least half of the models kept (Eq. 3); a tie keeps.

        Returns:
            A flat boolean array.
        """
        return 2 * self._votes >= self.count


class HolderTally(Tally):
    """A tally whose mean of an entry is over the models that kept it, not over all."""

    def __init__(self) -> None:
        super().__init__()
        self._held: Array = np.zeros(0)

    def add(self, model: SparseModel, weight: float) -> None:
        """Add a model, counted `weight` times at the entries that it kept."""
        super().add(model, weight)
        if self.count == 1:
            self._held = arrays.filled(model.weights, model.layout.trainable, 0.0, "float64")
        self._held += arrays.float64(model.mask) * weight

    def mean(self, mask: BoolArray | None = None) -> SparseModel:
        """The mean of each entry over the models that kept it; statistics over all models."""
        mean = super().mean(mask)
        here, trainable = mean.mask & (self._held > 0), mean.layout.trainable
        weights = arrays.copy(mean.weights)
        arrays.put(weights[:trainable], here, arrays.float32(self._sum[:trainable][here] / self._held[here]))
        return SparseModel(mean.layout, weights, mean.mask)


class PooledTally(Tally):
    """A tally whose running variances are those of all samples together: within the models, and between their means.

    Batch norms of clients with different classes have different means. The mean of their variances leaves out how far
    the means lie apart, so that the averaged network would scale its values by too much.

    Example:
        >>> from fedsparsify import SparseModel
        >>> from fedsparsify.average import PooledTally
        >>> sums = PooledTally()
        >>> for mean in (-1.0, 3.0):
        ...     sums.add(SparseModel.of({"w": [0.0]}, {"n.running_mean": [mean], "n.running_var": [1.0]}), weight=1)
        >>> sums.mean().weights
        array([0., 1., 5.], dtype=float32)
    """

    def __init__(self) -> None:
        super().__init__()
        self._squares: list[Array] = []  # of each batch norm: sums of squared means

    def add(self, model: SparseModel, weight: float) -> None:
        """Add a model, and the squares of its running means."""
        super().add(model, weight)
        squares = [arrays.float64(model.weights[mean]) ** 2 * weight for mean, _ in _norms(model.layout)]
        self._squares = [a + b for a, b in zip(self._squares, squares, strict=True)] if self._squares else squares

    def mean(self, mask: BoolArray | None = None) -> SparseModel:
        """The weighted mean; running variances are those of all samples."""
        found = super().mean(mask)
        weights = arrays.copy(found.weights)
        for (mean, variance), squares in zip(_norms(found.layout), self._squares, strict=True):
            between = squares / self._weight - (self._sum[mean] / self._weight) ** 2
            # Rounding may leave less than 0; a client may claim any mean, and infinity would never leave a variance.
            pooled = (self._sum[variance] / self._weight + between.clip(min=0)).clip(max=LARGEST)
            arrays.assign(weights, variance, arrays.float32(pooled))
        return SparseModel(found.layout, weights, found.mask)


def _norms(layout: Layout) -> list[tuple[slice, slice]]:
    """Where the running mean and the running variance of each batch norm lie."""
    pairs = [(spec.name, spec.name[: -len("mean")] + "var") for spec in layout.statistics]
    places = layout.slices
    return [
        (places[mean], places[variance])
        for mean, variance in pairs
        if mean.rpartition(".")[2] == "running_mean" and variance in places
    ]


class MeanOf:
    """Running weighted mean of flat arrays, summed in float64."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._sum: NDArray[np.float64] = np.zeros(())

    def add(self, array: Floats, weight: float) -> None:
        """Add an array, counted `weight` times."""
        self._weight += weight
        self._sum = self._sum + np.multiply(array, weight, dtype=np.float64)

    @property
    def value(self) -> Floats:
        """The mean of all arrays added."""
        if not self._weight:
            raise ModelError("there are no scores to average")
        return (self._sum / self._weight).astype(np.float32)


def weighted(models: Iterable[SparseModel], weights: Iterable[float]) -> SparseModel:
    """The weighted mean of models. An entry that some of them pruned counts as zero there.

    Args:
        models: models of one layout; a stream of them is read one at a time.
        weights: one positive number per model, such as its client's samples. They need not sum to one.

    Returns:
        The mean, under the union of the models' masks.

    Raises:
        ModelError: if there is no model, if layouts differ, or if a weight is not positive.
        ValueError: if there are not as many weights as models.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, weighted
        >>> ones = SparseModel.of({"w": np.ones(2)})
        >>> threes = SparseModel.of({"w": np.full(2, 3.0)})
        >>> weighted([ones, threes], [1, 3]).weights
        array([2.5, 2.5], dtype=float32)
    """
    tally = Tally()
    for model, weight in zip(models, weights, strict=True):
        if not isinstance(model, SparseModel):
            raise ModelError(f"weighted takes models (SparseModel). Received: {type(model).__name__}.")
        tally.add(model, weight)
    return tally.mean()


def majority(masks: Iterable[Mask]) -> Mask:
    """The entries that at least half of the masks keep (Eq. 3 of the paper); a tie keeps.

    Args:
        masks: flat boolean arrays of one size.

    Returns:
        A mask of the same size.

    Raises:
        ModelError: if there is no mask.

    Example:
        >>> from fedsparsify import majority
        >>> majority([[True, True, False], [True, False, False]])
        array([ True,  True, False])
    """
    votes, count = None, 0
    for mask in masks:
        kept = np.asarray(mask, np.bool_)
        votes = kept.astype(np.int32) if votes is None else votes + kept
        count += 1
    if votes is None:
        raise ModelError("there is no mask to vote with")
    return np.asarray(2 * votes >= count)
