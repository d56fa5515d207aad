"""Divide labelled samples among clients."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError, DataError, nearest

Indices: TypeAlias = NDArray[np.int64]
KINDS = {"iid": "iid", "classes": "classes:K", "dirichlet": "dirichlet:ALPHA"}
MOST_SEEDS = 2**63
DRAWS = 100  # Dirichlet draws in which every client must get a sample at least once


def partition(labels: ArrayLike, clients: int, how: str, seed: int = 0) -> list[Indices]:
    """Divide samples among clients by their labels. Every sample goes to one client; no client is empty.

    Args:
        labels: one integer class per sample.
        clients: how many clients there are.
        how: `iid` (at random, equal sizes), `classes:K` (K classes per client; the same for every seed) or
            `dirichlet:ALPHA` (each class in random proportions; a smaller ALPHA is more uneven).
        seed: of the random draws.

    Returns:
        One array of sample indices per client.

    Raises:
        ConfigError: if `how`, `clients` or `seed` cannot be used.
        DataError: if the samples cannot be divided so that no client is empty.

    Example:
        >>> from fedsparsify import partition
        >>> [part.tolist() for part in partition([0, 0, 1, 1, 2, 2], clients=3, how="classes:1")]
        [[0, 1], [2, 3], [4, 5]]
    """
    flat: NDArray[Any] = np.asarray(labels)
    kind, value = parse_split(how)
    if clients < 1:
        raise ConfigError(f"clients must be at least 1. Received: {clients!r}.")
    if flat.size < clients:
        raise DataError(f"{flat.size:,} samples leave some of {clients:,} clients empty. Use fewer clients.")
    check_seed(seed)
    rng = np.random.default_rng(seed)
    if kind == "iid":
        parts = np.array_split(rng.permutation(flat.size), clients)
    elif kind == "classes":
        parts = _by_classes(flat, clients, int(value))
    else:
        parts = _by_dirichlet(flat, clients, value, rng)
    return [np.asarray(part, np.int64) for part in parts]


def check_seed(seed: int) -> None:
    """Refuse a seed that some generator would not accept."""
    if not 0 <= seed < MOST_SEEDS:
        raise ConfigError(f"seed must lie in 0 … 2⁶³ − 1. Received: {seed!r}.")


def parse_split(how: str) -> tuple[str, float]:
    """`classes:2` → ("classes", 2.0)."""
    kind, _, text = how.partition(":")
    if kind not in KINDS:
        raise ConfigError(
            f"split must be one of {', '.join(KINDS.values())}. Received: {how!r}. {nearest(kind, KINDS)}"
        )
    try:
        value = float(text) if kind != "iid" else 0.0
        if (kind == "iid" and text) or (kind == "classes" and value != int(value)):
            raise ValueError
    except ValueError:
        raise ConfigError(f"split must have the form {KINDS[kind]}. Received: {how!r}.") from None
    if kind != "iid" and not 0 < value < float("inf"):
        raise ConfigError(f"split {KINDS[kind]} takes a positive number. Received: {how!r}.")
    return kind, value


def _by_classes(labels: NDArray[Any], clients: int, per_client: int) -> list[Indices]:
    """Cut every class into equal chunks; each client in turn takes the first chunks of classes it lacks.

    A class with as many chunks left as there are clients left goes first, so that the last clients never have to
    take one class twice. In the paper's environments this makes no difference.
    """
    names, sizes = np.unique(labels, return_counts=True)
    if per_client > names.size:
        raise DataError(f"split classes:{per_client} asks for more classes a client than the {names.size} there are.")
    if clients * per_client < names.size:
        raise DataError(
            f"split classes:{per_client} over {clients} clients covers {clients * per_client} of {names.size} classes. "
            f"Use at least {-(-names.size // clients)} classes a client, or more clients."
        )
    chunks, extra = divmod(clients * per_client, names.size)
    left = np.full(names.size, chunks)
    left[np.argsort(-sizes, kind="stable")[:extra]] += 1
    if starved := [str(name) for name, size, cuts in zip(names, sizes, left, strict=True) if size < cuts]:
        raise DataError(f"class {', '.join(starved)} has too few samples for {clients} clients; some would be empty.")
    piles = [iter(np.array_split(np.flatnonzero(labels == name), cuts)) for name, cuts in zip(names, left, strict=True)]
    parts = []
    for client in range(clients):
        due = np.flatnonzero(left == clients - client)
        others = np.flatnonzero((left > 0) & (left < clients - client))
        taken = np.sort(np.concatenate([due, others])[:per_client])
        left[taken] -= 1
        parts.append(np.concatenate([next(piles[name]) for name in taken]))
    return parts


def _by_dirichlet(labels: NDArray[Any], clients: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """Divide each class in proportions drawn from Dirichlet(alpha) (Hsu et al., 2019)."""
    classes = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    for _ in range(DRAWS):
        deals, held = [], np.zeros(clients, np.int64)
        for members in classes:
            shares = rng.dirichlet(np.full(clients, alpha))
            cuts = (np.cumsum(shares)[:-1] * members.size).astype(np.int64)
            deals.append((rng.permutation(members), cuts))
            held += np.diff(cuts, prepend=0, append=members.size)
        if held.all():
            chunks = [np.split(members, cuts) for members, cuts in deals]
            return [np.concatenate(mine) for mine in zip(*chunks, strict=True)]
    raise DataError(
        f"split dirichlet:{alpha:g} left some of {clients} clients empty in each of {DRAWS} draws. "
        f"Use a larger ALPHA or fewer clients."
    )


def holdings(labels: ArrayLike, parts: list[Indices], classes: int) -> NDArray[np.int64]:
    """How many samples of each class each client holds, (clients, classes)."""
    flat: NDArray[Any] = np.asarray(labels)
    return np.stack([np.bincount(flat[part], minlength=classes) for part in parts])
