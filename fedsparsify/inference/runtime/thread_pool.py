"""The thread pool of an engine.

Input: jobs. Output: their results, in the caller's output array. The caller is the first thread of the pool. The others
stay awake for a moment after each run, so that the next finds them ready.
"""

from __future__ import annotations

from os import getpid
from threading import Event, Lock, Thread
from typing import NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ...native.lines import address_of
from ..kernels.job_words import ASLEEP, JOB, NEXT_JOB_WORD, PREVIOUS, QUIT, WORKER, YIELD_WORD
from ..lowering.program import Arena, Program
from .jobs import Jobs
from .native_calls import NativeCalls, yield_address

Words = NDArray[np.int64]


class JobSlot(NamedTuple):
    """Where a thread finds its jobs (see job_words.SLOT_WORDS)."""

    words: Words
    address: int
    wake: Event
    held: list[object]  # memory that the jobs' addresses point into; a thread outlives its pool

    def post(self, native: NativeCalls, state: int) -> int:
        """Set the state; returns the state before."""
        native.post(self.address, state)
        return int(self.words[PREVIOUS])


class ThreadPool:
    """The calling thread and its helpers. One run at a time: hold `lock` while running."""

    def __init__(self, native: NativeCalls, threads: int) -> None:
        self.lock, self.process = Lock(), getpid()
        self.lost = False  # after Ctrl-C between posting the jobs and the caller's part, helpers wait for ever
        self._native, self._arrivals = native, 0
        self._arenas: dict[Program, Arena] = {}
        self._barrier = np.zeros(NEXT_JOB_WORD + 8, np.int64)
        self._barrier[YIELD_WORD] = yield_address()
        self._barrier_address = address_of(self._barrier)
        self._slots = [_job_slot(worker, self._arenas) for worker in range(threads)]
        for slot in self._slots[1:]:
            words = native, slot, self._barrier
            Thread(target=_help, args=words, name="fedsparsify-helper", daemon=True).start()
        finalize(self, _dismiss, native, self._slots[1:])

    def arena(self, program: Program, threads: int) -> Arena:
        """Working memory of a program: one that its workers share, or one per thread, end to end."""
        if program not in self._arenas:
            self._arenas[program] = program.arena(1 if len(program.tables) > 1 else threads)
        return self._arenas[program]

    def clear(self) -> None:
        """Free the working memory, unless a run uses it; jobs that point there are not served any more."""
        if self.lock.acquire(blocking=False):
            self.lost = True
            self._arenas.clear()
            self.lock.release()

    def run(self, jobs: Jobs, threads: int, x: Floats, y: Floats, arrivals: int) -> None:
        """Run jobs on some threads; returns when all are done.

        With `arrivals` at the barrier, job k runs on thread k. Without, idle threads take the next job.
        """
        queued, self.lost = 0 if arrivals else threads, True
        self._barrier[NEXT_JOB_WORD] = 0
        words = jobs.address, jobs.size, address_of(x), address_of(y), self._arrivals, queued
        for slot in self._slots[:threads]:
            slot.words[1:7], slot.held[1] = words, (jobs, x, y)
        for slot in self._slots[1:threads]:
            if slot.post(self._native, JOB) == ASLEEP:
                slot.wake.set()
        self._native.run_share(self._slots[0].address, self._barrier_address)
        for slot in self._slots[:threads]:
            slot.held[1] = None
        self._arrivals, self.lost = self._arrivals + (arrivals or threads), False


def _job_slot(worker: int, memory: object) -> JobSlot:
    words = np.zeros(16, np.int64)
    words[WORKER] = worker
    return JobSlot(words, address_of(words), Event(), [memory, None])


def _help(native: NativeCalls, slot: JobSlot, barrier: Words) -> None:
    """A helper thread: run jobs until none comes for a while, then sleep until woken."""
    while slot.words[0] != QUIT:
        native.run_until_idle(slot.address, address_of(barrier))
        if slot.words[0] == ASLEEP:
            slot.wake.wait()
        slot.wake.clear()


def _dismiss(native: NativeCalls, slots: list[JobSlot]) -> None:
    """Let helper threads end."""
    for slot in slots:
        slot.post(native, QUIT)
        slot.wake.set()
