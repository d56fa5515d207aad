"""The engine's kernels as Python calls them."""

from __future__ import annotations

import ctypes

from ..errors import ModelError
from ..native.images import Kernels

FILES = (
    *("curves", "dense_kernels", "dense_simd", "kernels", "operations", "small_simd", "sparse_kernels", "sparse_simd"),
    *("vectors", "winograd", "winograd_simd"),
)
KERNELS = Kernels("inference", "fedsparsify.inference.kernels", (8, 2), tuple(f"inference/{name}.py" for name in FILES))


class Native:
    """The kernels for one width of vectors. Arguments are 64-bit words, most of them addresses; see kernels.py."""

    def __init__(self, lanes: int) -> None:
        self._serve, self.post = KERNELS(lanes)

    def execute(self, program: int, arena: int, x: int, y: int, images: int, gate: int = 0, comings: int = 0) -> None:
        """Run a program over some images."""
        self._serve(program, arena, x, y, images, gate, comings, 0)

    def assist(self, program: int, arena: int, mail: int, gate: int) -> None:
        """Take jobs from a mailbox until none comes for a while."""
        self._serve(program, arena, 0, 0, 0, gate, 0, mail)


def native_code(lanes: int) -> Native:
    """The kernels for a width; compiled where no image of them was kept."""
    try:
        return Native(lanes)
    except ImportError as error:
        raise ModelError(
            "inference compiles its kernels once per machine: pip install 'fedsparsify[infer]'."
        ) from error


def yield_address() -> int:
    """Where the function lies that gives the core to another thread."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
