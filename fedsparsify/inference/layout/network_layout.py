"""The layout of a network: how every value of every level lies in the arena.

Input: levels (`levels.py`, `bands.py`) and the samples that a program serves. Output: a `Storage` with its offset for
each value, and the size of the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..frontend.fusion import Shape
from ..frontend.steps import Conv, Step
from ..kernels.program_table import Kind
from .arena import LINE_FLOATS, allocate, place_strips
from .levels import Level, inputs_of
from .pools import Included
from .storage import Storage, check_offsets, storages_of
from .strips import Chain, chains_of


@dataclass(frozen=True)
class SampleBlock:
    """The samples that one run of a program serves, and the workers that share it."""

    lanes: int  # floats per vector
    single: bool = False  # one sample rather than as many as share a vector
    wide: int = 1  # vectors of flat samples side by side
    workers: int = 1

    @property
    def samples(self) -> int:
        """Samples of a run."""
        return 1 if self.single else self.wide * self.lanes


class NetworkLayout:
    """Levels, and per level the storage of every value that it reads or makes."""

    def __init__(
        self, levels: Sequence[Level], shapes: dict[str, Shape], block: SampleBlock, pixel_lanes: bool
    ) -> None:
        """Decide the storage; `allocate` gives the offsets. `pixel_lanes`: see storage.storages_of."""
        self.levels, self.block = list(levels), block
        self.samples = [min(block.samples, block.wide * block.lanes // prod(level.grid)) for level in levels]
        self.storages = [storages_of(level, shapes, block.lanes, block.wide, pixel_lanes) for level in levels]
        self.chains: list[list[Chain]] = [[] for _ in levels]  # of steps that are computed strip by strip
        self.floats = 0  # of all values in the arena
        for level, storages in zip(self.levels, self.storages, strict=True):
            check_offsets(level, storages)

    def divide_in_strips(
        self, kinds: Mapping[str, Kind], steps: Sequence[Step], included: Mapping[str, Included]
    ) -> None:
        """Find the steps that are computed strip by strip; of the values between only a strip is stored."""
        for number, (level, storages) in enumerate(zip(self.levels, self.storages, strict=True)):
            self.chains[number] = chains_of(level, storages, kinds, steps, included)
            for chain in self.chains[number]:
                for name in chain.between:
                    storages[name].strip = chain.channels

    def allocate(self, included: Mapping[str, Included]) -> None:
        """Give each value its offset in the arena; some steps are included in convolutions."""
        self.floats = max(LINE_FLOATS, self.block.lanes)  # a guard: shifted reads may begin one vector early
        self.floats = place_strips(self.levels, self.storages, self.chains, self.floats, self.block.workers)
        for level, storages, chains in zip(self.levels, self.storages, self.chains, strict=True):
            self.floats = allocate(level, storages, self.floats, self.block.workers, included, chains)

    @property
    def largest(self) -> str:
        """The name of the value that takes most memory."""
        return max((storage.size, name) for storages in self.storages for name, storage in storages.items())[1]

    def convolutions(self) -> Iterator[tuple[Conv, Storage, Storage]]:
        """Each with the storage of its input and of its output."""
        for level, storages in zip(self.levels, self.storages, strict=True):
            for step in level.steps:
                if isinstance(step, Conv):
                    yield step, storages[step.inputs[0]], storages[step.name]

    def later_readers(self) -> list[dict[str, list[int]]]:
        """Per level and value that it touches, the numbers of the later levels that read the value."""
        wanted = [set(inputs_of(level)) for level in self.levels]
        return [
            {name: [k for k in range(index + 1, len(self.levels)) if name in wanted[k]] for name in level.blocks}
            for index, level in enumerate(self.levels)
        ]
