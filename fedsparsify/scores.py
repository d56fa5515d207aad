"""Which weights to keep: scores per weight, and the one place where a mask is made from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arrays
from .errors import ModelError
from .model import Layout, Mask, SparseModel
from .schedule import check_fraction

Scores: TypeAlias = NDArray[np.float32]


def magnitude(model: SparseModel) -> Scores:
    """Score of each trainable weight: its absolute value."""
    return abs(model.trainable_weights)


def random_order(model: SparseModel, rng: np.random.Generator) -> Scores:
    """Random scores. Under a mask that only shrinks, successive draws prune in one random order."""
    return cast(Scores, arrays.placed(rng.random(model.layout.trainable, np.float32), model.weights))


def snip(model: SparseModel, gradient: Scores) -> Scores:
    """Connection sensitivity |g ⊙ w|: how much the loss depends on each weight (Lee et al., 2019)."""
    return np.abs(gradient) * magnitude(model)


def grasp(model: SparseModel, hessian_gradient: Scores) -> Scores:
    """w ⊙ H g: the loss of gradient flow if a weight is removed (Wang et al., 2020, with the opposite sign)."""
    return hessian_gradient * model.trainable_weights


def weight_tensors(layout: Layout) -> Mask:
    """True for entries of weight tensors (more than one dimension), False for biases and the parameters of norms."""
    return np.concatenate([np.full(spec.size, len(spec.shape) > 1) for spec in layout.tensors])


def weight_tensors_first(scores: Scores, layout: Layout) -> Scores:
    """The scores with infinity outside weight tensors, so that only these are pruned."""
    return np.where(weight_tensors(layout), scores, np.float32(np.inf)).astype(np.float32)


def keep_in_each(scores: ArrayLike, counts: Iterable[int], layout: Layout, among: Mask | None = None) -> Mask:
    """The mask of the highest scores of each tensor, one count per tensor; a numpy array."""
    flat: NDArray[Any] = arrays.to_numpy(scores)
    mask = np.ones(layout.trainable, np.bool_) if among is None else arrays.to_numpy(among).copy()
    for spec, count in zip(layout.tensors, counts, strict=True):
        place = layout.slices[spec.name]
        mask[place] = keep_count(flat[place], count, mask[place])
    return mask


def keep_top(scores: ArrayLike, sparsity: float, among: Mask | None = None) -> Mask:
    """The mask of the highest scores, with exactly `int(sparsity · n)` of n entries pruned.

    Of equal scores the lower index is kept, so that every client keeps the same set.

    Args:
        scores: one number per entry, higher = keep; flat.
        sparsity: the fraction to prune, in [0, 1).
        among: entries that may be kept. The others stay pruned and count towards the fraction; if they are more
            than that already, no other entry is pruned.

    Returns:
        A flat boolean array, True where an entry is kept.

    Raises:
        ConfigError: if the sparsity lies outside [0, 1).
        ModelError: if scores are not flat or not numbers.

    Example:
        >>> from fedsparsify import keep_top
        >>> keep_top([0.1, 3.0, 2.0, 0.5], 0.5)
        array([False,  True,  True, False])
    """
    flat: Any = scores if hasattr(scores, "dtype") else np.asarray(scores)
    check_fraction("sparsity", sparsity)
    return keep_count(flat, len(flat) - int(sparsity * len(flat)), among)


def keep_count(scores: ArrayLike, count: int, among: Mask | None = None) -> Mask:
    """The mask of the `count` highest scores: `keep_top` with a count instead of a fraction."""
    flat: Any = scores if hasattr(scores, "dtype") else np.asarray(scores)
    if flat.ndim != 1:
        raise ModelError(f"scores must be flat. Received: shape {tuple(flat.shape)}")
    size = len(flat)
    if not_numbers := arrays.count(flat != flat):
        raise ModelError(f"scores must be numbers. Received: {not_numbers:,} NaN of {size:,}")
    alive = size if among is None else arrays.count(among)
    among = arrays.filled(flat, size, True, "bool") if among is None else among
    return cast(Mask, arrays.copy(among) if alive <= count else arrays.highest(flat, count, among, alive))
