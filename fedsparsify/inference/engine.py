"""Run a sparse model: numpy in, numpy out, no training framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError
from ..graph import INPUT, Node
from ..model import Floats, SparseModel, Survivors
from ..native.machine import cores_here, lanes_here
from ..wire.artefact import load, load_network
from .builder import weight_vectors
from .crew import Crew
from .layers import KERNELS, Recipe
from .native import native_code
from .program import Program, build_program
from .shapes import Shape, is_flat, shapes_of
from .steps import Flatten, read_steps

Key = tuple[tuple[int, ...], bool, int, int]  # shape of a sample, one image?, vectors side by side, workers
SHARED_VECTORS = 150_000  # multiplications from which one image is worth a second thread
DIVIDED_VECTORS = 1_000_000  # the same for a batch, whose threads are not kept awake
MOST_PLANS = 256  # shapes of batches that are remembered


class Job(NamedTuple):
    """Some images of a batch for one thread: a program, where its input and output begin, in bytes, and how many."""

    program: Key
    source: int
    target: int
    images: int


@dataclass(frozen=True)
class Plan:
    """How a batch of one shape is served: a list of jobs for each thread, or shared by all, where a program says so."""

    outputs: tuple[int, ...]
    parts: list[list[Job]]
    shared: Key | None


class Engine:
    """A sparse model made ready to run. Threads may share it; equal batches give equal bits."""

    def __init__(
        self,
        model: str | Path | SparseModel,
        threads: int | None = None,
        graph: Sequence[Node] | None = None,
        lanes: int | None = None,
        kernels: str = "auto",
    ) -> None:
        """Read a model.fsz, or take a model with the graph of its network. `lanes` overrides the machine's width."""
        started = perf_counter()
        if isinstance(model, SparseModel):
            tensors: Mapping[str, Floats | Survivors] = model.tensors()
        elif graph is None:
            graph, tensors = load_network(model)
        else:
            tensors = load(model).tensors()
        if graph is None:
            raise ModelError("a SparseModel alone does not say what its network computes; give the graph too.")
        self.threads = threads or cores_here()
        self.lanes = lanes or lanes_here()
        if kernels not in KERNELS:
            raise ModelError(f"kernels are one of {', '.join(KERNELS)}. Received: {kernels!r}.")
        self.kernels = kernels
        self._native = native_code(self.lanes)
        self._steps = read_steps(graph, tensors)
        self._programs: dict[Key, Program] = {}
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._crews: dict[Key, Crew] = {}
        self._shapes: dict[tuple[int, ...], dict[str, Shape]] = {}
        self._recipes: dict[tuple[tuple[int, ...], bool, int], dict[str, Recipe]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(self.threads - 1, "fedsparsify") if self.threads > 1 else None
        self.load_seconds = perf_counter() - started
        self.first_run_seconds: float | None = None

    def run(self, batch: Any) -> Floats:
        """Logits of a batch: (images, …) → (images, classes)."""
        started = perf_counter()
        x = np.ascontiguousarray(batch, np.float32)
        plan = self._plans.get(x.shape) or self._plan(x.shape)
        y = np.empty(plan.outputs, np.float32)
        if plan.shared is None or not self._run_shared(plan.shared, plan.parts, x, y):
            self._run_parts(plan.parts, x, y)
        if self.first_run_seconds is None:
            self.first_run_seconds = perf_counter() - started
        return y

    def _plan(self, batch: tuple[int, ...]) -> Plan:
        """How batches of a shape are divided; remembered, as looking takes as long as a small network."""
        if len(batch) < 2:
            raise ModelError(f"a batch has a dimension for the images. Received: shape {batch}.")
        images, sample = batch[0], batch[1:]
        shape = self._sample_shape(sample)
        made = self._shapes_of(shape)[self._steps[-1].name]
        outputs = (images, prod(made)) if is_flat(self._steps, len(sample)) else (images, *made)
        vectors = weight_vectors(self._steps, self._shapes_of(shape), self.lanes)
        threads = self.threads if images * vectors > DIVIDED_VECTORS else 1
        sizes = 4 * prod(sample), 4 * prod(made)
        jobs = [
            Job(key, first * sizes[0], first * sizes[1], count)
            for key, first, count in self._blocks(images, shape, threads)
        ]
        parts = [jobs[k::threads] for k in range(min(threads, len(jobs)))]
        alone = images == 1 and self.threads > 1 and vectors > SHARED_VECTORS
        plan = Plan(outputs, parts, (shape, True, 1, self.threads) if alone else None)
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[batch] = plan
        return plan

    def _sample_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A network that flattens its input at once takes rows of features."""
        readers = [step for step in self._steps if INPUT in step.inputs]
        return (prod(shape),) if all(isinstance(step, Flatten) for step in readers) else shape

    def _blocks(self, images: int, shape: tuple[int, ...], threads: int) -> Iterable[tuple[Key, int, int]]:
        """Which program serves which images: (program, first image, how many)."""
        wide = self._width(images, shape)
        block = wide * self.lanes
        rest = images % block if wide == 1 and images % block <= self.lanes // 4 else 0
        together = images - rest
        count = -(-together // block)
        even = -(-count // threads) * threads
        if together >= even * block // 2:
            count = even  # so that every thread gets as many
        for k in range(count):
            start, end = together * k // count, together * (k + 1) // count
            yield (shape, False, wide, 1), start, end - start
        for image in range(together, images):
            yield (shape, True, 1, 1), image, 1

    def _shapes_of(self, shape: tuple[int, ...]) -> dict[str, Shape]:
        """Shapes of all values, for samples of one shape."""
        if shape not in self._shapes:
            self._shapes[shape] = shapes_of(self._steps, shape)
        return self._shapes[shape]

    def _width(self, images: int, shape: tuple[int, ...]) -> int:
        """How many vectors of images a flat network takes side by side."""
        if len(shape) == 3:
            return 1
        return next((wide for wide in (4, 2) if images > wide // 2 * self.lanes), 1)

    def _run_shared(self, key: Key, parts: list[list[Job]], x: Floats, y: Floats) -> bool:
        """Let the threads share one image, where they are free, or one serve it, where that is faster at present."""
        crew = self._crews.get(key)
        if crew is None:
            program = self._program(key)
            with self._lock:
                crew = self._crews.setdefault(key, self._crews.get(key) or Crew(program, self._native))
        if not crew.lock.acquire(blocking=False):
            return False
        try:
            started = perf_counter()
            if crew.pace.shared:
                crew.run(x, y)
            else:
                self._run_parts(parts, x, y)
            crew.pace.took(perf_counter() - started)
        finally:
            crew.lock.release()
        return True

    def _run_parts(self, parts: list[list[Job]], x: Floats, y: Floats) -> None:
        ends = x.ctypes.data, y.ctypes.data
        waiting = [self._pool.submit(self._run_part, part, *ends) for part in parts[1:]] if self._pool else []
        if parts:
            self._run_part(parts[0], *ends)
        for other in waiting:
            other.result()

    def _run_part(self, jobs: list[Job], x: int, y: int) -> None:
        for key, source, target, count in jobs:
            program = self._programs.get(key) or self._program(key)
            try:
                arena = program.arenas.pop()
            except IndexError:
                arena = program.arena()
            self._native.execute(program.addresses[0], arena.address, x + source, y + target, count)
            program.arenas.append(arena)

    def _program(self, key: Key) -> Program:
        known = self._programs.get(key)
        if known is None:
            with self._lock:
                if key not in self._programs:
                    shape, single, wide, workers = key
                    shapes = dict(self._shapes_of(shape))
                    recipes = self._recipes.setdefault(key[:3], {})
                    self._programs[key] = build_program(
                        self._steps, shapes, self.lanes, single, wide, self.kernels, workers, recipes
                    )
                known = self._programs[key]
        return known
