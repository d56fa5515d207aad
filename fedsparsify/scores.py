"""Which weights to keep: a score for each, and the one place where a mask is made."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arrays
from .errors import ModelError
from .model import Mask, SparseModel
from .schedule import check_fraction

Scores: TypeAlias = NDArray[np.float32]


def magnitude(model: SparseModel) -> Scores:
    """Score of each trainable weight: its absolute value."""
    return abs(model.trainable_weights)


def random_order(model: SparseModel, rng: np.random.Generator) -> Scores:
    """Scores in random order; under a mask that only shrinks, successive draws make one nested random order."""
    return cast(Scores, arrays.placed(rng.random(model.layout.trainable, np.float32), model.weights))


def keep_top(scores: ArrayLike, sparsity: float, among: Mask | None = None) -> Mask:
    """Mask of the highest scores, with exactly `int(sparsity · n)` entries pruned.

    Entries outside `among` stay pruned and count towards that number; if they are more already, nothing else goes.
    Among equal scores the lower index is kept, so that every client keeps the same set.
    """
    flat: Any = scores if hasattr(scores, "dtype") else np.asarray(scores)
    check_fraction("sparsity", sparsity)
    if flat.ndim != 1:
        raise ModelError(f"scores must be flat. Received: shape {tuple(flat.shape)}")
    size = len(flat)
    if not_numbers := arrays.count(flat != flat):
        raise ModelError(f"scores must be numbers. Received: {not_numbers:,} NaN of {size:,}")
    mask = arrays.filled(flat, size, True, "bool") if among is None else arrays.copy(among)
    candidates = arrays.positions(mask)
    doomed = int(sparsity * size) - (size - len(candidates))
    if doomed <= 0:
        return cast(Mask, mask)
    alive = flat[candidates]
    threshold = arrays.kth_smallest(alive, doomed)
    below = alive < threshold
    ties = arrays.positions(alive == threshold)
    mask[candidates[below]] = False
    mask[candidates[ties[len(ties) - (doomed - arrays.count(below)) :]]] = False
    return cast(Mask, mask)
