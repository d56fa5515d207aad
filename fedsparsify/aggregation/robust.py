"""Robust rules: the merged vector of many, of which some may be anything.

In: one row per client, its update (what its model adds to the round's), float32. Out: the merged update, float64.
Every client has one vote, whatever number of samples it claims. All rows are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ..model import Floats
from .settings import Rule

Doubles = NDArray[np.float64]
CHUNK = 65_536  # columns that are worked on at a time
MOST_STEPS = 1_000  # of Weiszfeld's iteration, each of which costs n² products


def merge_rows(rows: Floats, rule: Rule, hostile: float) -> Doubles:
    """Merge rows (clients, values) by a rule; `hostile` is the share of clients that may be anything."""
    count = len(rows)
    match rule:
        case "median":
            return by_columns(rows, lambda part: np.asarray(np.median(part, axis=0)))
        case "trimmed":
            cut = min(assumed(hostile, count), (count - 1) // 2)
            return by_columns(rows, lambda part: np.asarray(np.sort(part, axis=0)[cut : count - cut].mean(axis=0)))
        case "geometric-median":
            shares = geometric_shares(squared_distances(rows))
        case "multi-krum":
            kept = krum_order(squared_distances(rows), hostile)
            shares = np.zeros(count)
            shares[kept] = 1 / len(kept)
        case "mean":
            shares = np.full(count, 1 / count)
    return by_columns(rows, lambda part: np.asarray(shares @ part))


def assumed(hostile: float, count: int) -> int:
    """The number of hostile clients among `count`: a share of 0.3 is three of ten, and one of two."""
    return ceil(hostile * count - 1e-9)


def by_columns(rows: Floats, merge: Callable[[Doubles], Doubles]) -> Doubles:
    """Apply `merge` to blocks of columns in float64: (clients, block) → (block,)."""
    merged = np.empty(rows.shape[1])
    for start in range(0, rows.shape[1], CHUNK):
        piece = slice(start, start + CHUNK)
        merged[piece] = merge(rows[:, piece].astype(np.float64))
    return merged


def squared_distances(rows: Floats) -> Doubles:
    """‖x_i − x_j‖² of all pairs, (clients, clients), in float64: float32 has lost them before they are compared."""
    products = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], CHUNK):
        part = rows[:, start : start + CHUNK].astype(np.float64)
        products += part @ part.T
    squares = np.diag(products)
    distances: Doubles = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
    np.fill_diagonal(distances, 0)
    return distances


def geometric_shares(distances: Doubles) -> Doubles:
    """Each row's share in the geometric median (Weiszfeld), from the squared distances of all pairs.

    The point is Σ a_i x_i at every step, so that its distances follow from those of the pairs: no step reads the rows.
    """
    count = len(distances)
    shares = np.full(count, 1 / count)
    least = 1e-6 * float(np.sqrt(np.median(distances))) or 1.0  # a point on a row would divide by zero
    for _ in range(MOST_STEPS):
        squared = distances @ shares
        squared -= shares @ squared / 2
        pulls = 1 / np.maximum(np.sqrt(np.maximum(squared, 0)), least)
        made = pulls / pulls.sum()
        moved = float(np.abs(made - shares).max())
        shares = made
        if moved < 1e-9:
            break
    return shares


def krum_order(distances: Doubles, hostile: float) -> NDArray[np.int64]:
    """The rows that multi-Krum keeps: those with the smallest sum of distances to their nearest neighbours.

    With f hostile rows of n it keeps n − f, and the guarantee needs n ≥ 2 f + 3; with fewer rows f is lowered.
    """
    count = len(distances)
    bad = min(assumed(hostile, count), max(0, (count - 3) // 2))
    neighbours = max(1, count - bad - 2)
    sums = np.sort(distances, axis=1)[:, 1 : 1 + neighbours].sum(axis=1)  # the nearest is the row itself
    return np.argsort(sums, kind="stable")[: count - bad]
