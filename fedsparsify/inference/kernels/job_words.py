"""The words by which Python and the kernels hand over jobs: a job, a thread's job slot, and the shared barrier.

All are arrays of 64-bit integers. Jobs and slots are filled by `runtime/`; `dispatch.py` and `threads.py` read them.
"""

from __future__ import annotations

JOB_WORDS = (
    "program",
    "arena",
    "arena_step",
    "x",
    "y",
    "samples",
)  # arena_step: bytes from one thread's arena to the next
SLOT_WORDS = ("state", "jobs", "count", "x", "y", "arrivals", "queued", "previous", "worker")
PREVIOUS, WORKER = SLOT_WORDS.index("previous"), SLOT_WORDS.index("worker")
IDLE, JOB, ASLEEP, QUIT = range(4)  # states of a job slot

# Words of the barrier: 0 counts arrivals. The others lie in cache lines of their own.
YIELD_WORD = 8  # address of the function that yields the core to another thread
NEXT_JOB_WORD = 16  # number of the next job that no thread has taken
