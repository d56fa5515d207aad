"""From steps to tables of operations over one arena: what runs for a block of images, with all it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ..frontend.fusion import Shape
from ..frontend.steps import Step
from ..layout.arena import LINE_FLOATS
from ..layout.memory import Memory
from ..layout.storage import separate_fills
from .builder import Builder
from .layers import Recipe
from .rows import header_of


class Arena(NamedTuple):
    """Working memory, its address, and bytes from one arena to the next where there are several."""

    floats: Floats
    address: int
    apart: int


@dataclass(frozen=True, eq=False)
class Program:
    """A table of operations per worker and the constants they read, which threads share."""

    tables: tuple[NDArray[Any], ...]
    stream: NDArray[np.int32]
    params: Floats
    indices: NDArray[np.int32]
    arena_floats: int
    comings: int  # that the workers' gate counts in a run
    memory: Memory  # that arenas are taken from
    arenas: list[Arena] = field(default_factory=list)  # that no run uses at present

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """Where each worker's header lies, which the kernels are handed."""
        return tuple(header.ctypes.data for header in self._headers)

    @cached_property
    def _headers(self) -> list[NDArray[np.int64]]:
        return [header_of(table, self.stream, self.params, self.indices) for table in self.tables]

    def arena(self, count: int = 1) -> Arena:
        """Working memory for one run, or for several at a time, zeroed and aligned."""
        apart = -(-self.arena_floats // LINE_FLOATS) * LINE_FLOATS
        floats = self.memory.zeros(count * apart, "the engine's working memory")
        return Arena(floats, floats.ctypes.data, 4 * apart)

    @property
    def arena_bytes(self) -> int:
        """Memory of an arena, rounded up."""
        return 4 * (self.arena_floats + 2 * LINE_FLOATS)

    @property
    def bytes(self) -> int:
        """Memory of the prepared weights and tables."""
        arrays = (*self.tables, self.stream, self.params, self.indices)
        return sum(array.nbytes for array in arrays)


def build_program(
    steps: Sequence[Step],
    shapes: dict[str, Shape],
    lanes: int,
    single: bool = False,
    wide: int = 1,
    kernels: str = "auto",
    workers: int = 1,
    recipes: dict[str, Recipe] | None = None,
    memory: Memory | None = None,
) -> Program:
    """The program for one image (`single`), for as many as there are lanes, or for `wide` times that many flat ones.

    Several workers share each step's channels and meet where one needs what another wrote. Recipes that were chosen
    before are kept, and new ones are added to them. What does not fit into `memory` is refused before it is made.
    """
    steps, recipes, memory = separate_fills(steps), {} if recipes is None else recipes, memory or Memory()
    builder = Builder(steps, shapes, lanes, single, wide, kernels, workers, recipes, memory)
    builder.build()
    constants = builder.stream.joined(), builder.params.joined(), builder.indices.joined()
    program = Program(builder.tables(), *constants, builder.arena_floats, builder.workers.comings, memory)
    memory.take(program.bytes, "the prepared network", program)
    return program
