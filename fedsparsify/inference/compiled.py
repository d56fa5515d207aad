"""Just-in-time compilation, kept on disk where the disk allows."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from numba import njit


def _stamp() -> str:
    """Changes with any file of this folder: kernels are made of several, and numba looks at one alone."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).hexdigest()


STAMP = _stamp()


def compiled(function: Callable[..., Any]) -> Any:
    """A function compiled at its first call, without the interpreter's lock; from disk where it was compiled before."""
    try:
        made = njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return njit(nogil=True, error_model="numpy")(function)
    made._cache._cache_file._source_stamp = STAMP
    return made
