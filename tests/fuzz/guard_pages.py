"""Memory between two pages that nobody may touch: whoever leaves it gets a signal."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparsify.inference.layout import memory_budget
from fedsparsify.inference.lowering import autotune, program
from fedsparsify.inference.lowering.encoding import header_of
from fedsparsify.inference.runtime import executor
from fedsparsify.native.lines import LINE_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
PROT_NONE = 0
_usual = [
    (module, name, getattr(module, name))
    for module, name in (
        (memory_budget, "zeros"),
        (autotune, "zeros"),
        (program, "header_of"),
        (autotune, "header_of"),
        (executor, "np"),
    )
]
_kept: list[Any] = []  # copies that headers point at


def guarded(count: int, kind: Any, at_end: bool, alignment: int = 4) -> NDArray[Any]:
    """So many zeros, which end where a forbidden page begins or begin where one ends."""
    size = count * np.dtype(kind).itemsize
    inside = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, inside + 2 * mmap.PAGESIZE)
    first = np.frombuffer(pages, np.uint8).ctypes.data
    for place in (first, first + mmap.PAGESIZE + inside):
        if _libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = mmap.PAGESIZE + ((inside - size) // alignment * alignment if at_end else 0)
    return np.frombuffer(pages, kind, count, start)


class Numpy:
    """Numpy, but `empty` is guarded."""

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        return guarded(int(np.prod(shape)), kind, self._at_end).reshape(shape)


def install(at_end: bool) -> None:
    """Let arenas, constants and outputs of all engines lie between guard pages."""

    def zeros(count: int, kind: Any = np.float32) -> NDArray[Any]:
        return guarded(count, kind, at_end, LINE_BYTES)

    def header(table: NDArray[Any], *constants: NDArray[Any]) -> NDArray[np.int64]:
        copies = []
        for array in constants:
            copies.append(guarded(array.size, array.dtype, at_end))
            copies[-1][...] = array
        _kept.append(copies)
        return header_of(table, *copies)

    _kept.clear()
    for (module, name, _), value in zip(_usual, (zeros, zeros, header, header, Numpy(at_end)), strict=True):
        setattr(module, name, value)


def remove() -> None:
    """The usual memory again."""
    _kept.clear()
    for module, name, value in _usual:
        setattr(module, name, value)
