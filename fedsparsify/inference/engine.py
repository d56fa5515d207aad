"""Run a sparse model: numpy in, numpy out, no training framework.

The engine is a small compiler, one folder per stage: `frontend/` reads the graph into fused steps, `layout/` decides
how values lie in memory, `lowering/` chooses kernels and writes the program, `runtime/` runs it on threads, `kernels/`
hold the compiled code. `planner.py` leads from a batch's shape to programs; this file from a batch to logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import getpid
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, WireError
from ..graph import Node
from ..model import Floats, SparseModel, Survivors
from ..native.lines import address_of
from ..native.machine import cores_here, lanes_here
from ..preprocessing import Preprocessing
from ..wire.artefact import load, load_network_and_facts
from ..wire.graphs import parse_graph
from .frontend.fusion import fuse
from .layout.levels import GRIDS
from .layout.memory_budget import MemoryBudget, OutOfMemory, size_of
from .lowering.kernel_choice import KERNEL_OPTIONS
from .planner import Planner
from .runtime.batch_plan import BatchPlan
from .runtime.native_calls import native_calls
from .runtime.thread_pool import ThreadPool

MOST_PLANS = 256  # shapes of batches that are remembered


class Engine:
    """A sparse model made ready to run. Threads may share it; equal batches give equal bits."""

    def __init__(
        self,
        model: str | Path | SparseModel,
        threads: int | None = None,
        graph: Sequence[Node] | None = None,
        lanes: int | None = None,
        kernels: str = "auto",
        max_memory: int | None = None,
    ) -> None:
        """Read a model.fsz, or take a model with the graph of its network.

        Args:
            model: a file, or a model whose `graph` is given.
            threads: that serve a batch; all cores where None.
            graph: what the network computes, where the file does not say.
            lanes: floats in a vector, 16, 8 or 4, in place of the machine's.
            kernels: `auto`, `sparse` or `dense`.
            max_memory: bytes that the engine may take for prepared weights, working memory of all threads, outputs and
                converted inputs; half of the machine's memory where None. What would need more is a ModelError.

        Raises:
            WireError: if the file is damaged, or does not say what its network computes.
            ModelError: if the network does not fit into `max_memory`, or a setting is unknown.

        Example:
            >>> from fedsparsify import Engine, RunConfig, load_dataset, run
            >>> run(RunConfig(rounds=1, epochs=1, clients=2)).save("model.fsz")
            >>> engine = Engine("model.fsz", max_memory=2 * 10**9)
            >>> engine.run(load_dataset("digits").x_test).shape
            (355, 10)
        """
        started = perf_counter()
        self._prepared: object = None  # how raw bytes become samples, as the file says it
        if isinstance(model, SparseModel) and graph is None:
            raise ModelError("a SparseModel alone does not say what its network computes; give the graph too.")
        if graph is None:
            assert not isinstance(model, SparseModel)
            tensors: Mapping[str, Floats | Survivors]
            graph, tensors, facts = load_network_and_facts(model)
            self._prepared = facts.get("preprocessing")
        else:
            whole = model if isinstance(model, SparseModel) else load(model)
            graph, tensors = _checked(graph, whole), whole.host_tensors()
        self.threads = threads or cores_here()
        self.lanes = lanes or lanes_here()
        if self.lanes not in GRIDS:
            raise ModelError(f"lanes are one of {', '.join(map(str, GRIDS))}. Received: {lanes!r}.")
        self._memory = MemoryBudget(max_memory)
        if kernels not in KERNEL_OPTIONS:
            raise ModelError(f"kernels are one of {', '.join(KERNEL_OPTIONS)}. Received: {kernels!r}.")
        self.kernels = kernels
        self._native = native_calls(self.lanes)
        network = fuse(graph, tensors, self._memory)
        self._planner = Planner(network, self.threads, self.lanes, kernels, self._memory)
        self._plans: dict[tuple[int, ...], BatchPlan] = {}
        self._pool: ThreadPool | None = None
        self._lock = Lock()
        self.load_seconds = perf_counter() - started
        self.first_run_seconds: float | None = None

    def run(self, batch: Any) -> Floats:
        """Outputs for a batch: (images, …) → (images, classes).

        Floats are taken as they are. Bytes (uint8) are prepared as raw samples were in training, if the engine was made
        from a file that says how: divided by 255, for most data.

        Args:
            batch: an array of one or more samples, with the batch as its first dimension.

        Returns:
            What the network gives for each sample, float32; of a classifier, logits.

        Raises:
            ModelError: if the batch does not fit the network, or needs more than `max_memory`.
        """
        started = perf_counter()
        x = batch if type(batch) is np.ndarray else _array(batch)
        flags = x.flags
        ready = x.dtype == np.float32 and flags.c_contiguous and flags.aligned
        if not ready and x.dtype.kind not in "fiub":
            raise ModelError(f"a batch holds real numbers. Received: an array of {x.dtype}.")
        plan = self._plans.get(x.shape) or self._plan(x.shape)
        if not ready:
            raw = x.dtype == np.uint8 and self._prepared is not None
            self._memory.expect((12 if raw else 4) * x.size, "a copy of the batch as float32")
            x = Preprocessing.read(self._prepared, x.shape[1])(x) if raw else x
            x = np.require(x, np.float32, ["C", "A"])
        y = np.empty(plan.output_shape, np.float32)
        if plan.threads == 1 or not self._run_on_pool(plan, x, y):
            self._run_alone(plan, x, y)
        if self.first_run_seconds is None:
            self.first_run_seconds = perf_counter() - started
        return y

    def explain(self, shape: tuple[int, ...]) -> str:
        """What the engine does with batches of a shape, stage by stage: steps, layout in memory, rows of the program.

        Args:
            shape: of a batch, (images, …).

        Returns:
            Text, one line per step, value and row.
        """
        self._plan(shape)
        return self._planner.explain(shape)

    @property
    def max_memory(self) -> int:
        """Bytes that the engine may take."""
        return self._memory.limit

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


def _checked(graph: Sequence[Node], model: SparseModel) -> tuple[Node, ...]:
    """A graph that did not come from a file, held to the same rules."""
    try:
        return parse_graph([node.to_json() for node in graph], model.layout)
    except WireError as error:
        raise ModelError(str(error)) from None


def _array(batch: Any) -> NDArray[Any]:
    """Anything that numpy sees as an array."""
    try:
        made = np.asarray(batch)
    except (ValueError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise ModelError(f"a batch is one array of numbers, (images, …): {error}") from None
    if np.ma.isMaskedArray(batch):
        raise ModelError("a batch is an array without masked values. Received: a masked array.")
    return made
