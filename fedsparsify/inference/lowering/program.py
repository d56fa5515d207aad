"""A program: what the kernels execute for one block of samples, with all that it needs.

Input: steps, the shapes of their values, and the block of samples. Output: a `Program`: one table of operations per
worker, the constants that they read, and the size of the arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ..frontend.fusion import Shape
from ..frontend.steps import Step
from ..layout.arena import LINE_FLOATS
from ..layout.memory_budget import MemoryBudget
from ..layout.network_layout import SampleBlock
from ..layout.pools import separate_fills
from .builder import ProgramBuilder
from .encoding import Table, encode, header_of
from .kernel_choice import KernelChoice


class Arena(NamedTuple):
    """Working memory, its address, and the bytes between arenas where there are several."""

    floats: Floats
    address: int
    step: int


@dataclass(frozen=True, eq=False)
class Program:
    """A table of operations per worker and the constants they read, which threads share."""

    tables: tuple[Table, ...]
    stream: NDArray[np.int32]  # packed weights of the sparse kernels
    params: Floats  # biases, factors, and packed weights of the dense kernels
    indices: NDArray[np.int32]
    arena_floats: int
    arrivals: int  # that the barrier counts in one run
    memory: MemoryBudget  # that arenas are taken from
    row_steps: tuple[str, ...]  # per row of the first table, the step that it belongs to
    arenas: list[Arena] = field(default_factory=list)  # that no run uses at present

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where each worker's header lies, which the kernels are handed."""
        return tuple(header.ctypes.data for header in self.headers)

    @cached_property
    def headers(self) -> list[NDArray[np.int64]]:
        """What the kernels are told of the program, worker by worker."""
        return [header_of(table, self.stream, self.params, self.indices) for table in self.tables]

    def arena(self, count: int = 1) -> Arena:
        """Working memory for one run, or for several at a time, zeroed and aligned."""
        step = -(-self.arena_floats // LINE_FLOATS) * LINE_FLOATS
        floats = self.memory.zeros(count * step, "the engine's working memory")
        return Arena(floats, floats.ctypes.data, 4 * step)

    @property
    def arena_bytes(self) -> int:
        """Memory of an arena, rounded up."""
        return 4 * (self.arena_floats + 2 * LINE_FLOATS)

    @property
    def bytes(self) -> int:
        """Memory of the packed weights and tables."""
        arrays = (*self.tables, self.stream, self.params, self.indices)
        return sum(array.nbytes for array in arrays)


def build_program(
    steps: Sequence[Step],
    shapes: dict[str, Shape],
    block: SampleBlock,
    kernel_option: str = "auto",
    choices: dict[str, KernelChoice] | None = None,
    memory: MemoryBudget | None = None,
) -> Program:
    """The program for a block of samples.

    Several workers share each step's channels and wait where one needs what another wrote. Kernels in `choices` are
    kept, and new choices are added to it. What does not fit into `memory` is refused before it is made.
    """
    memory = memory or MemoryBudget()
    builder = ProgramBuilder(
        separate_fills(steps), shapes, block, kernel_option, {} if choices is None else choices, memory
    )
    writer = builder.build()
    constants = writer.stream.joined(), writer.params.joined(), writer.indices.joined()
    tables = tuple(encode(rows) for rows in writer.finished())
    program = Program(tables, *constants, writer.arena_floats, writer.workers.arrivals, memory, tuple(writer.row_steps))
    memory.take(program.bytes, "the prepared network", program)
    return program
