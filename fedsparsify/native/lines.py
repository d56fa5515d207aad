"""Memory that begins at a cache line, as vector loads want it."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64


def address_of(array: NDArray[Any]) -> int:
    """Where an array's memory begins; numpy's own way takes a microsecond."""
    try:
        return addressof(c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # read-only, or empty
        return array.ctypes.data


def zeros(count: int, kind: Any = np.float32) -> NDArray[Any]:
    """So many zeros."""
    size = count * np.dtype(kind).itemsize
    raw = np.zeros(size + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(kind)
