"""Run a sparse model: numpy in, numpy out, no training framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from os import getpid
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ..errors import ModelError
from ..graph import INPUT, Node
from ..model import Floats, SparseModel, Survivors
from ..native.lines import address_of
from ..native.machine import cores_here, lanes_here
from ..wire.artefact import load, load_network
from .builder import weight_vectors
from .crew import Crew
from .layers import KERNELS, Recipe, surely_dense
from .native import native_code
from .operations import Orders
from .pace import Pace
from .program import Program, build_program
from .shapes import Shape, is_flat, shapes_of
from .steps import Conv, Flatten, read_steps

Key = tuple[tuple[int, ...], bool, int, int]  # shape of a sample, one image?, vectors side by side, workers
SHARED_VECTORS = 150_000  # multiplications from which one image is worth a second thread
FLAT_VECTORS = 100_000  # the same for a batch of a flat network that is one block, which threads share by channels
DIVIDED_VECTORS = 1_000_000  # the same for a batch that is divided, of which helpers may be asleep
MOST_PLANS = 256  # shapes of batches that are remembered


class Job(NamedTuple):
    """Some images of a batch: a program, where its input and output begin, in bytes, and how many."""

    program: Program
    source: int
    target: int
    images: int


@dataclass
class Plan:
    """How a batch of one shape is served: by the calling thread alone, or by as many as there are members."""

    outputs: tuple[int, ...]
    jobs: list[Job]
    alone: list[tuple[Program, Orders]]
    members: int
    shared: Program | None = None  # by which all members serve the only job
    pace: Pace = field(default_factory=Pace)
    orders: Orders | None = None  # of the members, in their crew's arenas
    crew: Crew | None = None


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
        self._crew: Crew | None = None
        self._shapes: dict[tuple[int, ...], dict[str, Shape]] = {}
        self._recipes: dict[tuple[tuple[int, ...], bool, int], dict[str, Recipe]] = {}
        self._lock = Lock()
        self.load_seconds = perf_counter() - started
        self.first_run_seconds: float | None = None

    def run(self, batch: Any) -> Floats:
        """Logits of a batch: (images, …) → (images, classes)."""
        started = perf_counter()
        x = np.ascontiguousarray(batch, np.float32)
        plan = self._plans.get(x.shape) or self._plan(x.shape)
        y = np.empty(plan.outputs, np.float32)
        if plan.members == 1 or not self._run_together(plan, x, y):
            self._run_alone(plan, x, y)
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
        least = FLAT_VECTORS if self._surely_dense(shape) else DIVIDED_VECTORS
        threads = self.threads if images * vectors > least else 1
        sizes = 4 * prod(sample), 4 * prod(made)
        jobs = [
            Job(self._program(key), first * sizes[0], first * sizes[1], count)
            for key, first, count in self._blocks(images, shape, threads)
        ]
        alone = [
            (program, Orders.of([(program.addresses[0], 0, 0, *job[1:]) for job in jobs if job.program is program]))
            for program in dict.fromkeys(job.program for job in jobs)
        ]
        large = vectors > SHARED_VECTORS if images == 1 else len(shape) == 1 and images * vectors > FLAT_VECTORS
        if self.threads > 1 and len(jobs) == 1 and large:
            key = (shape, images == 1, self._width(images, shape, 1), self.threads)
            plan = Plan(outputs, jobs, alone, self.threads, self._program(key))
        else:
            plan = Plan(outputs, jobs, alone, max(1, min(threads, len(jobs))))
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
        wide = self._width(images, shape, threads)
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

    def _surely_dense(self, shape: tuple[int, ...]) -> bool:
        """Whether a flat network has dense products only, whose bits do not depend on the images side by side."""
        layers = [step for step in self._steps if isinstance(step, Conv)]
        return len(shape) == 1 and all(surely_dense(step, self.kernels) for step in layers)

    def _width(self, images: int, shape: tuple[int, ...], threads: int) -> int:
        """How many vectors of images a flat network takes side by side; fewer where each thread can get some."""
        if len(shape) == 3:
            return 1
        enough = self.lanes * (threads if self._surely_dense(shape) else 1)
        return next((wide for wide in (4, 2) if images > wide // 2 * enough), 1)

    def _run_together(self, plan: Plan, x: Floats, y: Floats) -> bool:
        """Let the crew serve a batch, if it is free; one image goes the way that is faster at present."""
        crew = self._crew
        if crew is None or crew.process != getpid():
            with self._lock:
                if self._crew is crew:
                    self._crew = Crew(self._native, self.threads)
                crew = self._crew
            assert crew
        if not crew.lock.acquire(blocking=False):
            return False
        try:
            if crew.lost:
                self._crew = None
                return False
            if plan.orders is None or plan.crew is not crew:
                plan.orders, plan.crew = self._orders(plan, crew), crew
            if plan.shared is None:
                crew.run(plan.orders, plan.members, x, y, 0)
                return True
            started = perf_counter()
            if plan.pace.shared:
                crew.run(plan.orders, plan.members, x, y, plan.shared.comings)
            else:
                self._run_alone(plan, x, y)
            plan.pace.took(perf_counter() - started)
        finally:
            crew.lock.release()
        return True

    def _orders(self, plan: Plan, crew: Crew) -> Orders:
        if plan.shared is not None:
            arena = crew.arena(plan.shared, plan.members)
            images = plan.jobs[0].images
            return Orders.of([(address, arena.address, 0, 0, 0, images) for address in plan.shared.addresses])
        rows = []
        for program, *ends in plan.jobs:
            arena = crew.arena(program, self.threads)
            rows.append((program.addresses[0], arena.address, arena.apart, *ends))
        return Orders.of(rows)

    def _run_alone(self, plan: Plan, x: Floats, y: Floats) -> None:
        for program, orders in plan.alone:
            try:
                arena = program.arenas.pop()
            except IndexError:
                arena = program.arena()
            self._native.execute(orders.address, orders.size, arena.address, address_of(x), address_of(y))
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
