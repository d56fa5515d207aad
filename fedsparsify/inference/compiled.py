"""Just-in-time compilation, kept on disk where the disk allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """A function compiled at its first call, without the interpreter's lock; from disk where it was compiled before."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return njit(nogil=True, error_model="numpy")(function)
