"""The constant pool: arrays that the rows of a program point into.

Input: weights, tables and factors of all rows. Output: one array per type, in which equal parts are kept once.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ModelError

Number = TypeVar("Number", np.int32, np.float32)


class ConstantPool(Generic[Number]):
    """Arrays laid end to end; equal ones are kept once."""

    def __init__(self, dtype: type[Number]) -> None:
        self._dtype: type[Number] = dtype
        self._parts: list[NDArray[Number]] = []
        self._known: dict[int, list[tuple[int, NDArray[Number]]]] = {}
        self._size = 0

    def add(self, array: ArrayLike) -> int:
        """The offset of an array, which is added where it is new."""
        checked = int32(array) if self._dtype is np.int32 else array
        part: NDArray[Number] = np.ascontiguousarray(checked, self._dtype).ravel()
        alike = self._known.setdefault(crc32(part.data), [])
        for offset, known in alike:
            if known.size == part.size and known.tobytes() == part.tobytes():
                return offset
        alike.append((self._size, part))
        self._parts.append(part)
        self._size += part.size
        return alike[-1][0]

    @property
    def bytes(self) -> int:
        """Of all that was added."""
        return 4 * self._size

    def joined(self) -> NDArray[Number]:
        """All of them as one array."""
        return np.concatenate([np.zeros(0, self._dtype), *self._parts])


def int32(values: ArrayLike, what: str = "a table") -> NDArray[np.int32]:
    """Counts and offsets as the kernels read them: the only place where they become 32 bits wide."""
    array = np.asarray(values)
    if array.dtype != np.int32:
        check_bits(array, 32, what)
    return np.ascontiguousarray(array, np.int32)


def check_bits(values: NDArray[np.generic], bits: int, what: str) -> None:
    """Refuse numbers that so many bits do not hold."""
    least, most = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if not -(1 << bits - 1) <= least <= most < 1 << bits - 1:
        raise ModelError(f"{what} needs an offset of {max(-least, most):,}, which {bits} bits do not hold.")
