"""From a batch to results: plans by shape, and runs on the calling thread or on a thread pool.

Input: a planner, compiled functions and batches. Output: results. `Engine` is one; an int8 network has several.
"""

from __future__ import annotations

from os import getpid
from threading import Lock
from time import perf_counter
from typing import Protocol

import numpy as np

from ...errors import ModelError
from ...model import Floats
from ...native.lines import address_of
from ..layout.memory_budget import MemoryBudget, OutOfMemory, size_of
from .batch_plan import BatchPlan
from .native_calls import NativeCalls
from .thread_pool import ThreadPool

MOST_PLANS = 256  # shapes of batches that are remembered


class AnyPlanner(Protocol):
    """Plans the batches of a network, or of a part of one."""

    def plan(self, batch: tuple[int, ...], most: int) -> BatchPlan:
        """How batches of a shape are divided among so many threads at the most."""

    def explain(self, batch: tuple[int, ...]) -> str:
        """The stages of the programs that serve batches of a shape, as text."""

    def free(self) -> None:
        """Free the programs."""


class Executor:
    """A network made ready to run. Threads may share it."""

    def __init__(self, native: NativeCalls, planner: AnyPlanner, threads: int, memory: MemoryBudget) -> None:
        self.threads = threads
        self._native, self._planner, self._memory = native, planner, memory
        self._plans: dict[tuple[int, ...], BatchPlan] = {}
        self._pool: ThreadPool | None = None
        self._lock = Lock()

    def plan(self, batch: tuple[int, ...]) -> BatchPlan:
        """How batches of a shape are served; remembered."""
        return self._plans.get(batch) or self._plan(batch)

    def explained(self, batch: tuple[int, ...]) -> str:
        """What is done with batches of a shape, as text."""
        self._plan(batch)
        return self._planner.explain(batch)

    def serve(self, x: Floats) -> Floats:
        """Outputs for a batch of float32, aligned and in one piece."""
        plan = self.plan(x.shape)
        y = np.empty(plan.output_shape, np.float32)
        if plan.threads == 1 or not self._run_on_pool(plan, x, y):
            self._run_alone(plan, x, y)
        return y

    def _plan(self, batch: tuple[int, ...]) -> BatchPlan:
        """How batches of a shape are served; remembered, as planning takes as long as a small network.

        Where memory does not suffice, what was prepared for other shapes is freed, then one thread has to do.
        """
        if len(batch) < 2:
            raise ModelError(f"a batch has a dimension for the images. Received: shape {batch}.")
        for threads, freed in ((self.threads, False), (self.threads, True), (1, True)):
            if freed:
                self._free()
            try:
                plan = self._planner.plan(batch, threads)
                break
            except OutOfMemory:
                if threads == 1 and freed:
                    raise
            except MemoryError:
                limit = size_of(self._memory.limit)
                raise OutOfMemory(
                    f"the system ran out of memory below the engine's limit of {limit}; lower it."
                ) from None
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[batch] = plan
        return plan

    def _free(self) -> None:
        """Free all that was prepared; the choice of kernels is kept, so that results keep their bits."""
        with self._lock:
            if self._pool is not None:
                self._pool.clear()
            self._plans, self._pool = {}, None
        self._planner.free()

    def _run_on_pool(self, plan: BatchPlan, x: Floats, y: Floats) -> bool:
        """Serve a batch on the thread pool, if no other run uses it. One sample goes the way that is faster now."""
        pool = self._pool
        if pool is None or pool.process != getpid():
            with self._lock:
                if self._pool is pool:
                    self._pool = ThreadPool(self._native, self.threads)
                pool = self._pool
            assert pool
        if not pool.lock.acquire(blocking=False):
            return False
        try:
            if pool.lost:
                self._pool = None
                return False
            jobs = plan.jobs_in(pool, self.threads)
            if plan.shared is None:
                pool.run(jobs, plan.threads, x, y, 0)
                return True
            started = perf_counter()
            if plan.policy.shared:
                pool.run(jobs, plan.threads, x, y, plan.shared.arrivals)
            else:
                self._run_alone(plan, x, y)
            plan.policy.record(perf_counter() - started)
        finally:
            pool.lock.release()
        return True

    def _run_alone(self, plan: BatchPlan, x: Floats, y: Floats) -> None:
        """Serve a batch on the calling thread."""
        for program, jobs in plan.alone:
            try:
                arena = program.arenas.pop()
            except IndexError:
                arena = program.arena()
            self._native.execute(jobs.address, jobs.size, arena.address, address_of(x), address_of(y))
            program.arenas.append(arena)
