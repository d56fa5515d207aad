"""A client's samples in two parts: those it trains on, and those it keeps for evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .partition import Indices


def hold_out(labels: ArrayLike, part: Indices, fraction: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Divide a client's samples into training samples and held-out ones, at random and the same for equal seeds.

    Where labels are classes, each class gives its share, as closely as whole samples allow. At least one sample is
    held out and at least one is trained on; a client with one sample trains on it. Both parts keep the order of `part`.

    Args:
        labels: the labels of the whole data set.
        part: the indices of the client's samples.
        fraction: the share that is held out, in [0, 1).
        seed: of the run.
        client: the client's number.

    Returns:
        The indices to train on, and those that are held out.

    Example:
        >>> import numpy as np
        >>> from fedsparsify.data.holdout import hold_out
        >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        >>> train, held = hold_out(labels, np.arange(8), 0.25, seed=1, client=0)
        >>> len(train), sorted(labels[held].tolist())
        (6, [0, 1])
    """
    if not fraction or part.size < 2:
        return part, part[:0]
    count = min(max(1, round(fraction * part.size)), part.size - 1)
    rng = np.random.default_rng(np.random.SeedSequence([seed, client], spawn_key=(3,)))
    mine: NDArray[Any] = np.asarray(labels)[part]
    order = rng.permutation(part.size)
    chosen = np.zeros(part.size, np.bool_)
    if mine.ndim == 1 and mine.dtype.kind in "iu":
        # Sample k of a class of n comes at (k + u) / n of the way, u at random per class: the first `count` of all are
        # then spread over the classes in proportion.
        _, inverse, sizes = np.unique(mine[order], return_inverse=True, return_counts=True)
        rank = np.empty(part.size)
        for name, size in enumerate(sizes):
            rank[inverse == name] = (np.arange(size) + rng.random()) / size
        order = order[np.argsort(rank, kind="stable")]
    chosen[order[:count]] = True
    return part[~chosen], part[chosen]
