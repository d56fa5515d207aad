"""The engine's compiled functions as Python calls them.

Input: a vector width. Output: `NativeCalls`, whose arguments are 64-bit words, most of them addresses (see
`kernels/dispatch.py`).
"""

from __future__ import annotations

import ctypes

from ...errors import ModelError
from ...native.code_images import CodeImage
from ...ops import ACTIVATIONS

ACTIVATION_FILES = tuple(f"ops/{type(operation).__module__.rpartition('.')[2]}.py" for operation in ACTIVATIONS)
INFERENCE_CODE = CodeImage(
    "inference", "fedsparsify.inference.kernels.dispatch", (7, 2), ("inference/kernels", *ACTIVATION_FILES)
)


INT8_CODE = CodeImage(
    "int8",
    "fedsparsify.inference.int8.kernels.dispatch",
    (7, 2),
    ("inference/int8/kernels", *INFERENCE_CODE.sources),
)


class NativeCalls:
    """The compiled functions for one vector width."""

    def __init__(self, lanes: int, code: CodeImage) -> None:
        self._serve, self.post = code(lanes)

    def execute(self, jobs: int, count: int, arena: int, x: int, y: int) -> None:
        """Run some jobs, one after the other, in one arena."""
        self._serve(jobs, count, arena, x, y, 0, 0)

    def run_share(self, slot: int, barrier: int) -> None:
        """Do the calling thread's part of the jobs in its job slot."""
        self._serve(0, 1, 0, 0, 0, slot, barrier)

    def run_until_idle(self, slot: int, barrier: int) -> None:
        """Take jobs from a job slot until none comes for a while."""
        self._serve(0, 0, 0, 0, 0, slot, barrier)


def native_calls(lanes: int, code: CodeImage | None = None) -> NativeCalls:
    """The compiled functions for a vector width; compiled now where no code image was kept."""
    try:
        return NativeCalls(lanes, code or INFERENCE_CODE)
    except ImportError as error:
        raise ModelError(str(error)) from error


def yield_address() -> int:
    """The address of the function that yields the core to another thread."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
