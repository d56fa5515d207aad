"""Which weights to keep: scores per weight, and the one place where a mask is made from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from . import arrays
from .arrays import Array, BoolArray, FloatArray
from .errors import ModelError
from .model import Floats, Layout, Mask, SparseModel
from .schedule import check_fraction

Least: TypeAlias = Sequence[tuple[slice, int]]  # parts of a flat array, and the fewest entries that each keeps


def magnitude(model: SparseModel) -> FloatArray:
    """Score of each trainable weight: its absolute value."""
    return arrays.magnitude(model.trainable_weights)


def random_order(model: SparseModel, rng: np.random.Generator) -> FloatArray:
    """Random scores. Under a mask that only shrinks, successive draws prune in one random order."""
    return arrays.placed(rng.random(model.layout.trainable, np.float32), model.weights)


def lamp(model: SparseModel) -> FloatArray:
    """w² over the sum of w² of the entries of its tensor that are not smaller (LAMP: Lee et al., 2021).

    Within a tensor the order is that of magnitude. The last entry of every tensor scores 1, the highest score.
    """
    sizes = [spec.size for spec in model.layout.tensors if spec.size]
    weights = magnitude(model)
    part = arrays.part_numbers(sizes, weights)
    order = arrays.ranked(weights, part)
    highest = arrays.float64(weights)[order]
    first = [0, *np.cumsum(sizes)[:-1].tolist()]
    # Relative to the highest of its tensor, so that no sum of tensors loses the digits of a small one.
    top = highest[first].clip(min=1e-300)
    squares = (highest / top[part]) ** 2
    sums = squares.cumsum(0)
    before = (sums - squares)[first]  # of the tensors before this one
    return _in_place(squares / (sums - before[part]).clip(min=1e-300), order)


def uniform(model: SparseModel) -> FloatArray:
    """Magnitude within a tensor; every tensor loses the same share of its entries."""
    return _by_rank(model, [spec.size for spec in model.layout.tensors if spec.size])


def erk(model: SparseModel) -> FloatArray:
    """Magnitude within a tensor; densities are as the sum of a tensor's dimensions over their product (ERK)."""
    return _by_rank(model, [sum(spec.shape) or 1 for spec in model.layout.tensors if spec.size])


def _by_rank(model: SparseModel, scales: Sequence[int]) -> FloatArray:
    """The scale of its tensor over an entry's rank there, from 1: tensors keep entries as their scales are."""
    sizes = [spec.size for spec in model.layout.tensors if spec.size]
    weights = magnitude(model)
    part = arrays.part_numbers(sizes, weights)
    first, scale = (
        arrays.placed(np.asarray(each, np.float64), weights)[part] for each in (np.cumsum([0, *sizes[:-1]]), scales)
    )
    ranks = arrays.filled(weights, len(weights), 1, "float64").cumsum(0) - first
    return _in_place(scale / ranks, arrays.ranked(weights, part))


def _in_place(ordered: Array, order: Array) -> FloatArray:
    """Scores that were made in another order, at their entries."""
    scores = arrays.filled(ordered, len(ordered), 0, "float32")
    arrays.put(scores, order, arrays.float32(ordered))
    return scores


def snip(model: SparseModel, gradient: Floats) -> Floats:
    """Connection sensitivity |g ⊙ w|: how much the loss depends on each weight (Lee et al., 2019)."""
    return np.abs(gradient) * np.abs(model.host_weights[: model.layout.trainable])


def grasp(model: SparseModel, hessian_gradient: Floats) -> Floats:
    """w ⊙ H g: the loss of gradient flow if a weight is removed (Wang et al., 2020, with the opposite sign)."""
    return hessian_gradient * model.host_weights[: model.layout.trainable]


def weight_tensors(layout: Layout) -> Mask:
    """True for entries of weight tensors (more than one dimension), False for biases and the parameters of norms."""
    return np.concatenate([np.full(spec.size, len(spec.shape) > 1) for spec in layout.tensors])


def weight_tensors_first(scores: FloatArray, layout: Layout) -> FloatArray:
    """The scores with infinity outside weight tensors, so that only these are pruned."""
    first = arrays.copy(arrays.float32(scores))
    for spec in layout.tensors:
        if len(spec.shape) <= 1:
            first[layout.slices[spec.name]] = np.inf
    return first


def keep_in_each(
    scores: FloatArray, counts: Iterable[int], layout: Layout, among: BoolArray | None = None
) -> BoolArray:
    """The mask of the highest scores of each tensor, one count per tensor."""
    if among is None:
        mask = arrays.filled(scores, layout.trainable, True, "bool")
    else:
        mask = arrays.copy(arrays.placed(among, scores))
    for spec, count in zip(layout.tensors, counts, strict=True):
        if count < spec.size:
            place = layout.slices[spec.name]
            arrays.assign(mask, place, keep_count(scores[place], count, mask[place]))
    return mask


def keep_top(
    scores: ArrayLike | FloatArray, sparsity: float, among: BoolArray | None = None, least: Least = ()
) -> BoolArray:
    """The mask of the highest scores, with exactly `int(sparsity · n)` of n entries pruned.

    Of equal scores the lower index is kept, so that every client keeps the same set.

    Args:
        scores: one number per entry, higher = keep; flat.
        sparsity: the fraction to prune, in [0, 1).
        among: entries that may be kept. The others stay pruned and count towards the fraction; if they are more
            than that already, no other entry is pruned.
        least: parts of the array, each with the fewest entries that it keeps (of those in `among`): pairs of a slice
            and a count. Other parts lose more instead.

    Returns:
        A flat boolean array, True where an entry is kept.

    Raises:
        ConfigError: if the sparsity lies outside [0, 1).
        ModelError: if scores are not flat or not numbers, or `least` asks for more entries than are left.

    Example:
        >>> from fedsparsify import keep_top
        >>> keep_top([0.1, 3.0, 2.0, 0.5], 0.5)
        array([False,  True,  True, False])
        >>> keep_top([0.1, 3.0, 2.0, 0.5], 0.5, least=[(slice(3, 4), 1)])
        array([False,  True, False,  True])
    """
    flat = _flat(scores)
    check_fraction("sparsity", sparsity)
    return keep_count(flat, len(flat) - int(sparsity * len(flat)), among, least)


def _flat(scores: ArrayLike | FloatArray) -> Array:
    """Scores as an array or a tensor."""
    return cast(Array, scores) if hasattr(scores, "dtype") else np.asarray(scores)


def keep_count(
    scores: ArrayLike | FloatArray, count: int, among: BoolArray | None = None, least: Least = ()
) -> BoolArray:
    """The mask of the `count` highest scores: `keep_top` with a count instead of a fraction."""
    flat = _flat(scores)
    if flat.ndim != 1:
        raise ModelError(f"scores must be flat. Received: shape {tuple(flat.shape)}")
    size = len(flat)
    if not_numbers := arrays.count_nan(flat):
        raise ModelError(f"scores must be numbers. Received: {not_numbers:,} NaN of {size:,}")
    alive = size if among is None else arrays.count(among)
    candidates = arrays.filled(flat, size, True, "bool") if among is None else among
    if alive <= count:
        return arrays.copy(candidates)
    return _highest_with_least(flat, count, candidates, alive, least)


def _highest_with_least(flat: Array, count: int, among: BoolArray, alive: int, least: Least) -> BoolArray:
    """The `count` highest entries where every part keeps its least number; there are more than `count`.

    Parts that the highest entries would leave too few take theirs first, and the others share what is left. That
    raises the threshold, so that further parts may fall short: these follow in the next pass.
    """
    places = [place for place, _ in least]
    held = arrays.count_in_each(among, places)
    floors = [min(few, here) for (_, few), here in zip(least, held, strict=True)]
    if sum(floors) > count:
        raise ModelError(f"parts of the mask must keep {sum(floors):,} entries in all. Received: a count of {count:,}")
    kept, taken = arrays.filled(flat, len(flat), False, "bool"), 0
    short = [i for i, floor in enumerate(floors) if 0 < floor == held[i]]  # kept whole in any case
    while True:
        for i in short:
            part, whole = among[places[i]], floors[i] == held[i]
            best = part if whole else arrays.highest(flat[places[i]], floors[i], part, held[i])
            arrays.assign(kept, places[i], best)
            taken += floors[i]
            floors[i] = 0
        mask = kept | arrays.highest(flat, count - taken, among & ~kept, alive - taken)
        if not any(floors):
            return mask
        short = [i for i, here in enumerate(arrays.count_in_each(mask, places)) if here < floors[i]]
        if not short:
            return mask


def with_least(mask: BoolArray, scores: FloatArray, among: BoolArray, least: Least) -> BoolArray:
    """The mask with the highest other entries of `among` in parts that keep too few."""
    full, places = arrays.copy(mask), [place for place, _ in least]
    for (place, few), here in zip(least, arrays.count_in_each(mask, places), strict=True):
        if here < few:
            more = keep_count(scores[place], few - here, among[place] & ~mask[place])
            arrays.assign(full, place, mask[place] | more)
    return full
