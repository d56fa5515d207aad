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
from numpy.typing import NDArray

from ..errors import ModelError, WireError
from ..graph import INPUT, Node
from ..model import Floats, SparseModel, Survivors
from ..native.lines import address_of
from ..native.machine import cores_here, lanes_here
from ..wire.artefact import load, load_network
from ..wire.graphs import parse_graph
from .frontend.fusion import Shape, fuse, weight_vectors
from .frontend.steps import Conv, Flatten
from .layout.memory import Memory, OutOfMemory
from .layout.storage import GRIDS, named
from .lowering.layers import KERNELS, Recipe, surely_dense
from .lowering.program import Program, build_program
from .lowering.rows import Orders
from .runtime.native_calls import native_code
from .runtime.sharing import Pace
from .runtime.thread_pool import Crew

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

        Example:
            >>> from fedsparsify import Engine, RunConfig, load_dataset, run
            >>> run(RunConfig(rounds=1, epochs=1, clients=2)).save("model.fsz")
            >>> engine = Engine("model.fsz", max_memory=2 * 10**9)
            >>> engine.run(load_dataset("digits").x_test).shape
            (355, 10)
        """
        started = perf_counter()
        if isinstance(model, SparseModel) and graph is None:
            raise ModelError("a SparseModel alone does not say what its network computes; give the graph too.")
        if graph is None:
            assert not isinstance(model, SparseModel)
            tensors: Mapping[str, Floats | Survivors]
            graph, tensors = load_network(model)
        else:
            whole = model if isinstance(model, SparseModel) else load(model)
            graph, tensors = _checked(graph, whole), whole.host_tensors()
        self.threads = threads or cores_here()
        self.lanes = lanes or lanes_here()
        if self.lanes not in GRIDS:
            raise ModelError(f"lanes are one of {', '.join(map(str, GRIDS))}. Received: {lanes!r}.")
        self._memory = Memory(max_memory)
        if kernels not in KERNELS:
            raise ModelError(f"kernels are one of {', '.join(KERNELS)}. Received: {kernels!r}.")
        self.kernels = kernels
        self._native = native_code(self.lanes)
        self._fused = fuse(graph, tensors, self._memory)
        self._steps = self._fused.steps
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
        x = batch if type(batch) is np.ndarray else _array(batch)
        flags = x.flags
        ready = x.dtype == np.float32 and flags.c_contiguous and flags.aligned
        if not ready and x.dtype.kind not in "fiub":
            raise ModelError(f"a batch holds real numbers. Received: an array of {x.dtype}.")
        plan = self._plans.get(x.shape) or self._plan(x.shape)
        if not ready:
            self._memory.expect(4 * x.size, "a copy of the batch as float32")
            x = np.require(x, np.float32, ["C", "A"])
        y = np.empty(plan.outputs, np.float32)
        if plan.members == 1 or not self._run_together(plan, x, y):
            self._run_alone(plan, x, y)
        if self.first_run_seconds is None:
            self.first_run_seconds = perf_counter() - started
        return y

    @property
    def max_memory(self) -> int:
        """Bytes that the engine may take."""
        return self._memory.limit

    def _plan(self, batch: tuple[int, ...]) -> Plan:
        """How batches of a shape are served; remembered, as looking takes as long as a small network.

        By fewer threads, and without what was prepared for other shapes, where there is no memory for that.
        """
        if len(batch) < 2:
            raise ModelError(f"a batch has a dimension for the images. Received: shape {batch}.")
        for threads, alone in ((self.threads, False), (self.threads, True), (1, True)):
            if alone:
                self._forget()
            try:
                plan = self._divided(batch, threads)
                break
            except OutOfMemory:
                if threads == 1 and alone:
                    raise
            except MemoryError:
                raise OutOfMemory("the system has less memory than the engine may take; set max_memory.") from None
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[batch] = plan
        return plan

    def _forget(self) -> None:
        """Let go of all that was prepared; which kernels were chosen is kept, so that bits stay what they were."""
        with self._lock:
            if self._crew is not None:
                self._crew.clear()
            self._programs, self._plans, self._crew = {}, {}, None

    def _divided(self, batch: tuple[int, ...], most: int) -> Plan:
        """How batches of a shape are divided among so many threads at the most."""
        images, sample = batch[0], batch[1:]
        shape = self._sample_shape(sample)
        made = self._shapes_of(shape)[self._steps[-1].name]
        outputs = (images, *self._fused.output(sample))
        vectors = weight_vectors(self._steps, self._shapes_of(shape), self.lanes)
        least = FLAT_VECTORS if self._surely_dense(shape) else DIVIDED_VECTORS
        self._memory.expect(4 * prod(outputs), f"the output {outputs}")
        threads = most if images * vectors > least else 1
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
        if most > 1 and len(jobs) == 1 and large:
            key = (shape, images == 1, self._width(images, shape, 1), self.threads)
            plan = Plan(outputs, jobs, alone, self.threads, self._program(key))
        else:
            plan = Plan(outputs, jobs, alone, max(1, min(threads, len(jobs))))
        arenas = sum(program.arena_bytes for program, _ in alone) * (self.threads if plan.members > 1 else 1)
        arenas += plan.shared.arena_bytes if plan.shared else 0
        self._memory.expect(4 * prod(outputs) + arenas, f"working memory for a batch of {images:,}")
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
            shapes = self._fused.shapes(shape)
            for name, sides in shapes.items():
                self._memory.expect(4 * prod(sides), f"{named(name)}, of {sides} values per sample,")
            self._shapes[shape] = shapes
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
                        self._steps, shapes, self.lanes, single, wide, self.kernels, workers, recipes, self._memory
                    )
                known = self._programs[key]
        return known


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
