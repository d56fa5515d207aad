"""From the shape of a batch to its plan: how it is divided, and the programs that serve it.

Input: a network of fused steps, and the shape of a batch. Output: a `BatchPlan`. Programs are built once per sample
shape and block.
"""

from __future__ import annotations

from math import prod
from threading import Lock

from ..graph import INPUT
from .explain import explain_layout, explain_rows, explain_steps
from .frontend.fusion import Shape, weight_vectors
from .frontend.network import Network
from .frontend.steps import Constant, Conv, Flatten, MatMul, Relayout, Step
from .layout.block_cost import blocks_pay
from .layout.memory_budget import MemoryBudget
from .layout.network_layout import SampleBlock
from .layout.pools import separate_fills
from .layout.storage import named
from .lowering.builder import ProgramBuilder
from .lowering.kernel_choice import KernelChoice, surely_dense
from .lowering.program import Program, build_program
from .runtime.batch_plan import BatchPlan, Job, spans_of

SHARED_VECTORS = 150_000  # multiplications from which one sample is worth a second thread
FLAT_VECTORS = 100_000  # the same for a batch of a flat network that is one block, which threads share by channels
DIVIDED_VECTORS = 1_000_000  # the same for a batch that is divided, as helper threads may be asleep

Sides = tuple[int, ...]  # of a sample


class Planner:
    """Plans batches of one network, and keeps the programs for them."""

    def __init__(self, network: Network, threads: int, lanes: int, kernel_option: str, memory: MemoryBudget) -> None:
        self.network = network
        self.programs: dict[tuple[Sides, SampleBlock], Program] = {}
        self._threads, self._lanes, self._kernel_option, self._memory = threads, lanes, kernel_option, memory
        self._shapes: dict[Sides, dict[str, Shape]] = {}
        self._choices: dict[tuple[Sides, bool, int], dict[str, KernelChoice]] = {}
        self._lock = Lock()

    def plan(self, batch: tuple[int, ...], most: int) -> BatchPlan:
        """How batches of a shape are divided among so many threads at the most."""
        samples, sample = batch[0], self.sample_shape(batch[1:])
        shapes, steps = self.shapes(sample), self.steps(sample)
        made = shapes[steps[-1].name]
        output_shape = (samples, *self.network.fused(batch[1:]).output(batch[1:]))
        vectors = weight_vectors(steps, shapes, self._lanes)
        self._memory.expect(4 * prod(output_shape), f"the output {output_shape}")
        threads = most if samples * vectors > self._least_vectors(sample) else 1
        sizes = 4 * prod(sample), 4 * prod(made)
        blocks = len(sample) != 3 or blocks_pay(steps, shapes, self._lanes, samples)
        spans = spans_of(samples, self._lanes, self._width(samples, sample, threads), threads, blocks)
        jobs = [
            Job(self.program(sample, block), first * sizes[0], first * sizes[1], count) for block, first, count in spans
        ]
        large = vectors > SHARED_VECTORS if samples == 1 else len(sample) == 1 and samples * vectors > FLAT_VECTORS
        if most > 1 and len(jobs) == 1 and large:
            block = SampleBlock(self._lanes, samples == 1, self._width(samples, sample, 1), self._threads)
            plan = BatchPlan(output_shape, jobs, self._threads, self.program(sample, block))
        else:
            plan = BatchPlan(output_shape, jobs, max(1, min(threads, len(jobs))))
        arenas = sum(program.arena_bytes for program, _ in plan.alone) * (self._threads if plan.threads > 1 else 1)
        arenas += plan.shared.arena_bytes if plan.shared else 0
        self._memory.expect(4 * prod(output_shape) + arenas, f"working memory for a batch of {samples:,}")
        return plan

    def free(self) -> None:
        """Free the programs."""
        with self._lock:
            self.programs = {}

    def sample_shape(self, sample: Sides) -> Sides:
        """A network that flattens its input at once takes rows of features."""
        readers = [step for step in self.steps(sample) if INPUT in step.inputs]
        flat = (prod(sample),)
        return flat if self.network.any_shape and all(isinstance(step, Flatten) for step in readers) else sample

    def steps(self, sample: Sides) -> tuple[Step, ...]:
        """The steps for samples of a shape."""
        return self.network.fused(sample).steps

    def shapes(self, sample: Sides) -> dict[str, Shape]:
        """Shapes of all values, for samples of one shape."""
        if sample not in self._shapes:
            shapes = self.network.fused(sample).shapes(sample)
            for name, sides in shapes.items():
                self._memory.expect(4 * prod(sides), f"{named(name)}, of {sides} values per sample,")
            self._shapes[sample] = shapes
        return self._shapes[sample]

    def program(self, sample: Sides, block: SampleBlock) -> Program:
        """The program for a block of samples of one shape."""
        known = self.programs.get((sample, block))
        if known is None:
            with self._lock:
                if (sample, block) not in self.programs:
                    shapes = dict(self.shapes(sample))
                    choices = self._choices.setdefault((sample, block.single, block.wide), {})
                    self.programs[sample, block] = build_program(
                        self.steps(sample), shapes, block, self._kernel_option, choices, self._memory
                    )
                known = self.programs[sample, block]
        return known

    def explain(self, batch: tuple[int, ...]) -> str:
        """The stages of the programs that serve batches of a shape, as text."""
        plan, sample = self.plan(batch, self._threads), self.sample_shape(batch[1:])
        served = {plan.shared, *(job.program for job in plan.jobs)}
        lines = [*explain_steps(self.steps(sample), self.shapes(sample))]
        for (sides, block), program in list(self.programs.items()):
            if program in served:
                choices = self._choices[sides, block.single, block.wide]
                steps, shapes = separate_fills(self.steps(sides)), dict(self.shapes(sides))
                writer = ProgramBuilder(steps, shapes, block, self._kernel_option, choices, self._memory).build()
                lines += [f"program for samples: {block.samples}, workers: {block.workers}"]
                lines += [*explain_layout(writer.layout), *explain_rows(writer.finished())]
        return "\n".join(lines)

    def _least_vectors(self, sample: Sides) -> int:
        """Multiplications of a batch from which it is worth a second thread."""
        return FLAT_VECTORS if self._all_dense(sample) else DIVIDED_VECTORS

    def _all_dense(self, sample: Sides) -> bool:
        """Whether a flat network has dense products only, whose bits do not depend on the samples side by side."""
        layers = [step for step in self.steps(sample) if isinstance(step, Conv)]
        return len(sample) == 1 and all(surely_dense(step, self._kernel_option) for step in layers)

    def _width(self, samples: int, sample: Sides, threads: int) -> int:
        """How many vectors of samples a flat network takes side by side; fewer where each thread can get some."""
        images = any(sides[1:] != (1, 1) for sides in self.shapes(sample).values())
        narrow = any(isinstance(step, Relayout | Constant | MatMul) for step in self.steps(sample))
        if len(sample) == 3 or images or narrow:
            return 1
        enough = self._lanes * (threads if self._all_dense(sample) else 1)
        return next((wide for wide in (4, 2) if samples > wide // 2 * enough), 1)
