"""The engine's kernels as Python calls them."""

from __future__ import annotations

import ctypes

from ...errors import ModelError
from ...native.images import Kernels
from ...ops import ACTIVATIONS

ACTIVATION_FILES = tuple(f"ops/{type(operation).__module__.rpartition('.')[2]}.py" for operation in ACTIVATIONS)
KERNELS = Kernels(
    "inference",
    "fedsparsify.inference.kernels.dispatch",
    (7, 2),
    ("inference/kernels", "inference/lowering/rows.py", *ACTIVATION_FILES),
)


class Native:
    """The kernels for one width of vectors. Arguments are 64-bit words, most of them addresses; see kernels.py."""

    def __init__(self, lanes: int) -> None:
        self._serve, self.post = KERNELS(lanes)

    def execute(self, orders: int, count: int, arena: int, x: int, y: int) -> None:
        """Carry out some orders, one after the other, in one arena."""
        self._serve(orders, count, arena, x, y, 0, 0)

    def lead(self, mail: int, gate: int) -> None:
        """Do one's part of the job in one's own mailbox."""
        self._serve(0, 1, 0, 0, 0, mail, gate)

    def assist(self, mail: int, gate: int) -> None:
        """Take jobs from a mailbox until none comes for a while."""
        self._serve(0, 0, 0, 0, 0, mail, gate)


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
