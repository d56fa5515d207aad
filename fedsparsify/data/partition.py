"""Divide samples among clients: by their labels, by a column of client ids, or by a function of a user's."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError, DataError, nearest
from ..plugins import call_named, describes_object, load_named

Indices: TypeAlias = NDArray[np.int64]
KINDS = {
    "iid": "iid",
    "classes": "classes:K",
    "dirichlet": "dirichlet:ALPHA",
    "dirichlet-equal": "dirichlet-equal:ALPHA",
    "column": "column",
}
OWN = "module:function"
MOST_SEEDS = 2**63
DRAWS = 100  # Dirichlet draws in which every client must get a sample at least once


def partition(
    labels: ArrayLike, clients: int, how: str, seed: int = 0, column: ArrayLike | None = None
) -> list[Indices]:
    """Divide samples among clients. Every sample goes to one client; no client is empty.

    Args:
        labels: one target per sample; `classes:K` and both `dirichlet` splits need integer classes.
        clients: how many clients there are.
        how: `iid` (at random, equal sizes), `classes:K` (K classes per client; the same for every seed),
            `dirichlet:ALPHA` (each class in random proportions; a smaller ALPHA is more uneven),
            `dirichlet-equal:ALPHA` (the same with equal sizes: each client draws its own proportions of the classes,
            and takes what others before it left of them), `column` (by `column`) or `module:function` of your own:
            called with (labels, clients, seed), it returns one array of sample numbers per client, or one client
            number per sample.
        seed: of the random draws.
        column: who holds each sample, for `column`: numbers or names. Clients are numbered in their sorted order.

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
    if len(flat) < clients:
        raise DataError(f"{len(flat):,} samples leave some of {clients:,} clients empty. Use fewer clients.")
    check_seed(seed)
    rng = np.random.default_rng(seed)
    if flat.ndim == 1 and flat.dtype.kind == "f" and np.isin(flat, (0, 1)).all():
        flat = flat.astype(np.int64)  # yes or no
    if kind in ("classes", "dirichlet", "dirichlet-equal") and (flat.ndim != 1 or flat.dtype.kind not in "iub"):
        raise DataError(
            f"split {how} needs one class per sample. Received: targets of {flat.dtype}, {flat.shape}. "
            f"Use iid, column, or a function of your own, {OWN}."
        )
    if kind == "iid":
        parts = np.array_split(rng.permutation(len(flat)), clients)
    elif kind == "column":
        parts = _by_column(column, clients)
    elif kind == OWN:
        parts = _by_function(how, flat, clients, seed)
    elif kind == "classes":
        parts = _by_classes(flat, clients, int(value))
    elif kind == "dirichlet-equal":
        parts = _by_dirichlet_of_equal_sizes(flat, clients, value, rng)
    else:
        parts = _by_dirichlet(flat, clients, value, rng)
    return [np.asarray(part, np.int64) for part in parts]


def check_seed(seed: int) -> None:
    """Refuse a seed that some generator would not accept."""
    if not 0 <= seed < MOST_SEEDS:
        raise ConfigError(f"seed must lie in 0 … 2⁶³ − 1. Received: {seed!r}.")


def parse_split(how: str) -> tuple[str, float]:
    """`classes:2` → ("classes", 2.0)."""
    if describes_object(how):
        return OWN, 0.0
    kind, _, text = how.partition(":")
    bare = kind in ("iid", "column")
    if kind not in KINDS:
        if kind and all(part.isidentifier() for part in text.split(".")):
            return OWN, 0.0
        raise ConfigError(
            f"split must be one of {', '.join(KINDS.values())} and {OWN}. Received: {how!r}. {nearest(kind, KINDS)}"
        )
    try:
        value = 0.0 if bare else float(text)
        if (bare and text) or (kind == "classes" and value != int(value)):
            raise ValueError
    except ValueError:
        raise ConfigError(f"split must have the form {KINDS[kind]}. Received: {how!r}.") from None
    if not bare and not 0 < value < float("inf"):
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


def _by_dirichlet_of_equal_sizes(
    labels: NDArray[Any], clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Client by client, draw classes without replacement in proportions of the client's own, from Dirichlet(alpha).

    The split of ZeroFL and SparsyFed (Reddi et al., 2021). A class that is used up counts no more. The last clients
    take what is left, whatever their proportions.
    """
    names, sizes = np.unique(labels, return_counts=True)
    piles = [rng.permutation(np.flatnonzero(labels == name)) for name in names]
    taken, parts = np.zeros(names.size, np.int64), []
    for size in [part.size for part in np.array_split(labels, clients)]:
        shares, before = rng.dirichlet(np.full(names.size, alpha)), taken.copy()
        while need := size - int((taken - before).sum()):
            left = sizes - taken
            wanted = np.where(left > 0, shares, 0.0)
            if not wanted.sum() > 0:
                wanted = left.astype(np.float64)
            taken += np.minimum(rng.multinomial(need, wanted / wanted.sum()), left)
        parts.append(np.concatenate([pile[a:b] for pile, a, b in zip(piles, before, taken, strict=True)]))
    return parts


def _by_column(column: ArrayLike | None, clients: int) -> list[Indices]:
    """One client per id, in the order of the ids."""
    if column is None:
        raise DataError(
            "split column needs a column of client ids, one per training sample: the array 'client' of an .npz, the "
            "key 'client' of what your function returns, or Dataset(…, clients=…)."
        )
    ids, holder = np.unique(np.asarray(column), return_inverse=True)
    if ids.size != clients:
        raise ConfigError(
            f"clients must be {ids.size}, the number of ids in the column of clients. Received: {clients!r}."
        )
    return [np.flatnonzero(holder == number) for number in range(clients)]


def _by_function(name: str, labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
    """What a user's function returns, checked."""
    made = call_named(load_named(name, {}, "split"), name, "split", labels, clients, seed)
    what = f"split {name!r} must return one array of sample numbers per client, or one client number per sample"
    try:
        arrays = [np.asarray(part) for part in made]
    except TypeError:
        raise DataError(f"{what}. Received: {type(made).__name__}.") from None
    if len(arrays) == len(labels) and all(array.ndim == 0 for array in arrays):
        holder = np.asarray(made)
        if holder.dtype.kind not in "iu" or holder.min() < 0 or holder.max() >= clients:
            raise DataError(f"{what}: clients are 0 … {clients - 1}. Received: {holder.min()} … {holder.max()}.")
        arrays = [np.flatnonzero(holder == number) for number in range(clients)]
    if len(arrays) != clients or not all(array.ndim == 1 for array in arrays):
        raise DataError(f"{what}. Received: {len(arrays):,} entries for {clients:,} clients.")
    if empty := [number for number, array in enumerate(arrays) if not array.size]:
        raise DataError(f"split {name!r} leaves client {empty[0]} without samples.")
    flat = np.concatenate(arrays)
    if flat.dtype.kind not in "iu" or flat.min() < 0 or flat.max() >= len(labels):
        raise DataError(f"{what}: samples are 0 … {len(labels) - 1}. Received: {flat.min()} … {flat.max()}.")
    if len(np.unique(flat)) < flat.size:
        twice = np.flatnonzero(np.bincount(flat) > 1)[0]
        raise DataError(f"split {name!r} gives a sample to two clients, or twice to one: sample {twice}.")
    return arrays


def holdings(labels: ArrayLike, parts: list[Indices], classes: int) -> NDArray[np.int64]:
    """How many samples of each class each client holds, (clients, classes); without classes one column, all samples."""
    flat: NDArray[Any] = np.asarray(labels)
    if not classes or flat.ndim > 1:
        return np.array([[part.size] for part in parts])
    return np.stack([np.bincount(flat[part], minlength=classes) for part in parts])
