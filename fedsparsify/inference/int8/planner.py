"""From the shape of a batch to its plan, for an integer part of a network.

Input: fused steps and their ranges, and the shape of a batch. Output: a `BatchPlan`, as `inference/planner.py` gives
it. Only batches come here, and each block of samples is one thread's: results do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from threading import Lock

from ..explain import explain_layout, explain_rows, explain_steps
from ..frontend.fusion import Fused, Shape, weight_vectors
from ..layout.memory_budget import MemoryBudget
from ..layout.network_layout import SampleBlock
from ..lowering.program import Program
from ..planner import DIVIDED_VECTORS, Sides
from ..runtime.batch_plan import BatchPlan, Job
from .lowering import build_int_program, int_rows
from .network import IntNetwork, Range, int_network


class IntPlanner:
    """Plans batches of one integer part, and keeps the programs for them."""

    def __init__(
        self, network: Fused, ranges: Mapping[str, Range], threads: int, lanes: int, memory: MemoryBudget
    ) -> None:
        """`lanes` are floats of a vector, which has twice as many 16-bit integers."""
        self.network, self.programs = network, dict[Sides, Program]()
        self._ranges, self._threads, self._memory = ranges, threads, memory
        self._block = SampleBlock(2 * lanes)
        self._numbers: dict[Sides, IntNetwork] = {}
        self._lock = Lock()

    def plan(self, batch: tuple[int, ...], most: int) -> BatchPlan:
        """How batches of a shape are divided among so many threads at the most."""
        samples, sample = batch[0], batch[1:]
        shapes = self.shapes(sample)
        output_shape = (samples, *self.network.output(sample))
        self._memory.expect(4 * prod(output_shape), f"the output {output_shape}")
        program = self.program(sample)
        busy = samples * weight_vectors(self.network.steps, shapes, self._block.lanes) > DIVIDED_VECTORS
        threads = most if busy else 1
        count = -(-samples // self._block.samples)
        even = -(-count // threads) * threads
        if samples >= even * self._block.samples // 2:
            count = even  # so that every thread gets as many
        ends = [samples * k // count for k in range(count + 1)]
        sizes = 4 * prod(sample), 4 * prod(output_shape[1:])
        jobs = [Job(program, first * sizes[0], first * sizes[1], last - first) for first, last in pairwise(ends)]
        plan = BatchPlan(output_shape, jobs, max(1, min(threads, len(jobs))))
        arenas = program.arena_bytes * (self._threads if plan.threads > 1 else 1)
        self._memory.expect(4 * prod(output_shape) + arenas, f"working memory for a batch of {samples:,}")
        return plan

    def free(self) -> None:
        """Free the programs."""
        with self._lock:
            self.programs = {}

    def shapes(self, sample: Sides) -> dict[str, Shape]:
        """Shapes of all values, for samples of one shape."""
        shapes = self.network.shapes(sample)
        for name, sides in shapes.items():
            self._memory.expect(4 * prod(sides), f"{name!r}, of {sides} values per sample,")
        for step in self.network.steps:
            shapes.setdefault(step.name, shapes[step.inputs[0]])
        return shapes

    def numbers(self, sample: Sides) -> IntNetwork:
        """The integers of the network, for samples of one shape."""
        if sample not in self._numbers:
            self._numbers[sample] = int_network(self.network.steps, self.shapes(sample), self._ranges)
        return self._numbers[sample]

    def program(self, sample: Sides) -> Program:
        """The program for a block of samples of one shape."""
        with self._lock:
            if sample not in self.programs:
                made = build_int_program(self.numbers(sample), self.shapes(sample), self._block, self._memory)
                self.programs[sample] = made
            return self.programs[sample]

    def explain(self, batch: tuple[int, ...]) -> str:
        """The stages of the program that serves batches of a shape, as text."""
        sample = batch[1:]
        shapes = self.shapes(sample)
        writer = int_rows(self.numbers(sample), shapes, self._block, self._memory)
        lines = [*explain_steps(self.network.steps, shapes), f"integer program for samples: {self._block.samples}"]
        return "\n".join([*lines, *explain_layout(writer.layout), *explain_rows(writer.finished())])
