"""Which weights to keep: a score for each, and the one place where a mask is made."""

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
    """Scores in random order; under a mask that only shrinks, successive draws make one nested random order."""
    return cast(Scores, arrays.placed(rng.random(model.layout.trainable, np.float32), model.weights))


def snip(model: SparseModel, gradient: Scores) -> Scores:
    """Connection sensitivity |g ⊙ w|: how much the loss hangs on each weight (Lee et al., 2019)."""
    return np.abs(gradient) * magnitude(model)


def grasp(model: SparseModel, hessian_gradient: Scores) -> Scores:
    """w ⊙ H g: what removing a weight costs in gradient flow; −w ⊙ H g with the sign turned (Wang et al., 2020)."""
    return hessian_gradient * model.trainable_weights


def kernels(layout: Layout) -> Mask:
    """The entries of tensors with more than one dimension; biases and norms' scales and shifts have one."""
    return np.concatenate([np.full(spec.size, len(spec.shape) > 1) for spec in layout.tensors])


def kernels_alone(scores: Scores, layout: Layout) -> Scores:
    """The scores of kernels; everything else scores infinity, and so goes last."""
    return np.where(kernels(layout), scores, np.float32(np.inf)).astype(np.float32)


def keep_in_each(scores: ArrayLike, counts: Iterable[int], layout: Layout, among: Mask | None = None) -> Mask:
    """Mask of the highest scores of each tensor, as many as `counts` gives it, in the host's memory."""
    flat: NDArray[Any] = arrays.to_numpy(scores)
    mask = np.ones(layout.trainable, np.bool_) if among is None else arrays.to_numpy(among).copy()
    for spec, count in zip(layout.tensors, counts, strict=True):
        place = layout.slices[spec.name]
        mask[place] = keep_count(flat[place], count, mask[place])
    return mask


def keep_top(scores: ArrayLike, sparsity: float, among: Mask | None = None) -> Mask:
    """Mask of the highest scores, with exactly `int(sparsity · n)` entries pruned.

    Entries outside `among` stay pruned and count towards that number; if they are more already, nothing else goes.
    Among equal scores the lower index is kept, so that every client keeps the same set.
    """
    flat: Any = scores if hasattr(scores, "dtype") else np.asarray(scores)
    check_fraction("sparsity", sparsity)
    return keep_count(flat, len(flat) - int(sparsity * len(flat)), among)


def keep_count(scores: ArrayLike, count: int, among: Mask | None = None) -> Mask:
    """`keep_top` for those who know how many entries stay: the mask of the `count` highest scores."""
    flat: Any = scores if hasattr(scores, "dtype") else np.asarray(scores)
    if flat.ndim != 1:
        raise ModelError(f"scores must be flat. Received: shape {tuple(flat.shape)}")
    size = len(flat)
    if not_numbers := arrays.count(flat != flat):
        raise ModelError(f"scores must be numbers. Received: {not_numbers:,} NaN of {size:,}")
    alive = size if among is None else arrays.count(among)
    among = arrays.filled(flat, size, True, "bool") if among is None else among
    return cast(Mask, arrays.copy(among) if alive <= count else arrays.highest(flat, count, among, alive))
