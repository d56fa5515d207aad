"""Memory that begins at a cache line, as vector loads want it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64


def zeros(count: int, kind: Any = np.float32) -> NDArray[Any]:
    """So many zeros."""
    size = count * np.dtype(kind).itemsize
    raw = np.zeros(size + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(kind)
