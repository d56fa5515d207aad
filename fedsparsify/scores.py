"""Which weights to keep: scores per weight, and the one place where a mask is made from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from . import arrays
from .arrays import Array, BoolArray, FloatArray
from .errors import ModelError
from .model import Floats, Layout, Mask, SparseModel
from .schedule import check_fraction


def magnitude(model: SparseModel) -> FloatArray:
    """Score of each trainable weight: its absolute value."""
    return arrays.magnitude(model.trainable_weights)


def random_order(model: SparseModel, rng: np.random.Generator) -> FloatArray:
    """Random scores. Under a mask that only shrinks, successive draws prune in one random order."""
    return arrays.placed(rng.random(model.layout.trainable, np.float32), model.weights)


def snip(model: SparseModel, gradient: Floats) -> Floats:
    """Connection sensitivity |g ⊙ w|: how much the loss depends on each weight (Lee et al., 2019)."""
    return np.abs(gradient) * np.abs(model.host_weights[: model.layout.trainable])


def grasp(model: SparseModel, hessian_gradient: Floats) -> Floats:
    """w ⊙ H g: the loss of gradient flow if a weight is removed (Wang et al., 2020, with the opposite sign)."""
    return hessian_gradient * model.host_weights[: model.layout.trainable]


def weight_tensors(layout: Layout) -> Mask:
    """True for entries of weight tensors (more than one dimension), False for biases and the parameters of norms."""
    return np.concatenate([np.full(spec.size, len(spec.shape) > 1) for spec in layout.tensors])


def weight_tensors_first(scores: Floats, layout: Layout) -> Floats:
    """The scores with infinity outside weight tensors, so that only these are pruned."""
    return np.where(weight_tensors(layout), scores, np.float32(np.inf)).astype(np.float32)


def keep_in_each(scores: FloatArray, counts: Iterable[int], layout: Layout, among: BoolArray | None = None) -> Mask:
    """The mask of the highest scores of each tensor, one count per tensor; a numpy array."""
    flat: Floats = arrays.to_numpy(scores)
    mask = np.ones(layout.trainable, np.bool_) if among is None else arrays.to_numpy(among).copy()
    for spec, count in zip(layout.tensors, counts, strict=True):
        place = layout.slices[spec.name]
        mask[place] = arrays.to_numpy(keep_count(flat[place], count, mask[place]))
    return mask


def keep_top(scores: ArrayLike | FloatArray, sparsity: float, among: BoolArray | None = None) -> BoolArray:
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
    flat = _flat(scores)
    check_fraction("sparsity", sparsity)
    return keep_count(flat, len(flat) - int(sparsity * len(flat)), among)


def _flat(scores: ArrayLike | FloatArray) -> Array:
    """Scores as an array or a tensor."""
    return cast(Array, scores) if hasattr(scores, "dtype") else np.asarray(scores)


def keep_count(scores: ArrayLike | FloatArray, count: int, among: BoolArray | None = None) -> BoolArray:
    """The mask of the `count` highest scores: `keep_top` with a count instead of a fraction."""
    flat = _flat(scores)
    if flat.ndim != 1:
        raise ModelError(f"scores must be flat. Received: shape {tuple(flat.shape)}")
    size = len(flat)
    if not_numbers := arrays.count_nan(flat):
        raise ModelError(f"scores must be numbers. Received: {not_numbers:,} NaN of {size:,}")
    alive = size if among is None else arrays.count(among)
    candidates = arrays.filled(flat, size, True, "bool") if among is None else among
    return arrays.copy(candidates) if alive <= count else arrays.highest(flat, count, candidates, alive)
