"""How numba is to compile kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Any:
    """A function for other kernels to call, compiled when they are."""
    return njit(**OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A function that becomes a part of its callers: LLVM takes its time over each function that calls others again."""
    return njit(**OPTIONS, inline="always")(function)
