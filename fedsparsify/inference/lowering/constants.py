"""Arrays that a program's rows point into."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError

RUNS = (4, 2)  # floats that are moved at a time, where they stay together


class Pieces:
    """Arrays laid end to end; equal ones are kept once."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []
        self._known: dict[int, list[tuple[int, NDArray[Any]]]] = {}
        self._size = 0

    def add(self, array: Any) -> int:
        """Where the array lies."""
        part = int32(array).ravel() if self._dtype is np.int32 else np.ascontiguousarray(array, self._dtype).ravel()
        alike = self._known.setdefault(crc32(part.data), [])
        for place, known in alike:
            if known.size == part.size and known.tobytes() == part.tobytes():
                return place
        alike.append((self._size, part))
        self._parts.append(part)
        self._size += part.size
        return alike[-1][0]

    @property
    def bytes(self) -> int:
        """Of all that was added."""
        return 4 * self._size

    def joined(self) -> NDArray[Any]:
        """All of them as one array."""
        return np.concatenate([np.zeros(0, self._dtype), *self._parts])


def int32(values: Any, what: str = "a table") -> NDArray[np.int32]:
    """Counts and offsets as the kernels read them: the only place where they become 32 bits wide."""
    array = np.asarray(values)
    if array.dtype != np.int32:
        check_bits(array, 32, what)
    return np.ascontiguousarray(array, np.int32)


def check_bits(values: NDArray[Any], bits: int, what: str) -> None:
    """Refuse numbers that so many bits do not hold."""
    least, most = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if not -(1 << bits - 1) <= least <= most < 1 << bits - 1:
        raise ModelError(f"{what} needs an offset of {max(-least, most):,}, which {bits} bits do not hold.")


def runs_of(source: NDArray[np.int32], target: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
    """What goes where, image by image: pairs (from, to) of where runs begin that stay together; their length."""
    order = np.argsort(target, axis=1, kind="stable")
    near, there = np.take_along_axis(source, order, 1), np.take_along_axis(target, order, 1)
    for run in RUNS:
        if _together(near, run) and _together(there, run):
            return np.stack([near[:, ::run].ravel(), there[:, ::run].ravel()], 1), run
    return np.stack([source.ravel(), target.ravel()], 1), 1  # in the order they come, which reads line by line


def _together(places: NDArray[np.int32], run: int) -> bool:
    """Whether places come in runs of neighbours."""
    count = places.shape[1]
    return count % run == 0 and bool((places == places[:, ::run].repeat(run, 1) + np.arange(count) % run).all())
