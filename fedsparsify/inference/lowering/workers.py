"""The shares of several workers in a program: who writes which channels, and where workers must wait for each other.

Input: which worker writes and reads which channels of a value, in the order of the program. Output: the rows of each
worker with the barriers between them. A worker is one thread's share of a program.

A value with a halo is stored once per worker, and each worker writes only its own copy: what another core wrote takes
long to read. So a worker fetches the pixels of the others once, without their halos, and writes the halos itself.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from ..frontend.steps import Conv, Pair
from ..kernels.program_table import Kind
from ..layout.storage import Storage
from .kernel_choice import KernelChoice
from .rows import BarrierRow, Row

EVEN_SHARE = 16  # channels are divided among workers in multiples of this, as dense kernels write so many
WEIGHT_CYCLES = 2.5  # of a weight besides its products
CROSSING_CYCLES = 36  # of a cache line that another core wrote
HALO_CYCLES = 6  # of a line of a halo
VISIT_WEIGHTS = 4  # weights that take as long as the fixed cost of a visit of the sparse kernel

Bounds = list[int]  # how channels are divided: worker k has those from bounds[k] up to bounds[k + 1]


class Missing(NamedTuple):
    """Channels that a worker must fetch from another."""

    worker: int
    other: int
    first: int
    last: int


class Workers:
    """The rows of every worker."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[list[Row]] = [[] for _ in range(count)]
        self.arrivals = 0  # at the barrier, in one run
        self._unsynchronized: dict[Storage, Bounds] = {}  # values written since the last barrier, and who wrote what
        self._written: dict[Storage, Bounds] = {}  # the same of all values
        self._partial: dict[Storage, Bounds] = {}  # values of which each worker's copy has only what it wrote itself

    def add_barrier(self) -> None:
        """Let all workers wait for each other."""
        self.arrivals += self.count
        for rows in self.rows:
            rows.append(BarrierRow(arrivals=self.arrivals))
        self._unsynchronized.clear()

    def record_write(self, storage: Storage, bounds: Bounds) -> None:
        """Record who wrote what. Of a band each worker reads only what it wrote itself, seams apart."""
        if storage.bands == 1:
            self._unsynchronized[storage] = self._written[storage] = bounds
            if storage.worker_step:
                self._partial[storage] = bounds

    def before_read(self, storage: Storage, bounds: Bounds, whole: bool) -> list[Missing]:
        """Add a barrier where one worker reads what another may still be writing; returns what they must then fetch.

        Each reads the channels that it writes next (`bounds`), or the `whole` value.
        """
        written = (self._partial if storage.worker_step else self._unsynchronized).get(storage)
        if not written or (not whole and written == bounds) or (first_has_all(written) and first_has_all(bounds)):
            return []
        if storage in self._unsynchronized:
            self.add_barrier()
        if not storage.worker_step:
            return []
        del self._partial[storage]
        pairs = [(worker, other) for worker in range(self.count) for other in range(self.count) if worker != other]
        parts = list(pairwise(written))
        return [Missing(worker, other, *parts[other]) for worker, other in pairs if parts[other][0] < parts[other][1]]

    def unsynchronized(self, storage: Storage) -> bool:
        """Whether a worker may still be writing a value."""
        return storage in self._unsynchronized

    def complete_copies(self, storage: Storage) -> bool:
        """Whether each worker has, or will have, all channels of a value in its own copy."""
        return storage.worker_step > 0 and storage not in self._partial

    def bounds(self, storage: Storage) -> Bounds:
        """How a value's channels are divided: as they were written, else evenly."""
        channels = storage.shape[0]
        even = [min(channels, -(-channels * k // (EVEN_SHARE * self.count)) * EVEN_SHARE) for k in range(self.count)]
        written = self._partial.get(storage) or self._unsynchronized.get(storage)
        before = self._written.get(storage)
        return written or (before if before and not first_has_all(before) else [*even, channels])

    def nothing_yet(self, storage: Storage) -> Bounds:
        """Bounds of workers that each read all of a value."""
        return [*[0] * self.count, storage.shape[0]]

    def all_channels(self, storage: Storage) -> list[Pair]:
        """A share of all channels for every worker."""
        return [(0, storage.shape[0])] * self.count

    def first_only(self, storage: Storage) -> Bounds:
        """Bounds that leave all channels to the first worker."""
        return [0, *[storage.shape[0]] * self.count]

    def fair_bounds(
        self, step: Conv, source: Storage, target: Storage, choice: KernelChoice, multiple: int = 1
    ) -> Bounds:
        """Divide a convolution's output channels in multiples so that the workers take about as long.

        The first takes all channels where waiting for what others wrote would take longer than computing the rest, and
        groups whose inputs were not divided in the same way.
        """
        channels = target.shape[0]
        if self.count == 1:
            return self.first_only(target)
        if step.groups > 1:
            return self.group_bounds(step, source) or self.first_only(target)
        if choice.kind in (Kind.DENSE, Kind.WINOGRAD):
            load, share = np.arange(1, channels + 1), EVEN_SHARE
        else:
            load, share = np.cumsum(step.weight.per_output() + VISIT_WEIGHTS * choice.input_blocks), multiple
            if load[-1] * (prod(target.block) + WEIGHT_CYCLES) < _crossing_cycles(step, source):
                return self.first_only(target)
        cuts = [int(np.searchsorted(load, load[-1] * k / self.count)) for k in range(1, self.count)]
        return [0, *(min(channels, round(cut / share) * share) for cut in cuts), channels]

    def group_bounds(self, step: Conv, source: Storage) -> Bounds | None:
        """How a convolution's groups are divided where each worker reads only what it wrote, if they can be."""
        bounds, depth = self.bounds(source), step.weight.shape[1]
        if any(bound % depth for bound in bounds):
            return None
        return [bound // depth * step.group_outputs for bound in bounds]


def _crossing_cycles(step: Conv, source: Storage) -> float:
    """Cycles to read a value that others wrote."""
    lines = source.size // source.lanes
    if not source.worker_step:
        return CROSSING_CYCLES * min(lines, step.weight.places.size)
    inner = source.shape[0] * prod(source.block)
    return CROSSING_CYCLES * inner + HALO_CYCLES * (lines - inner)


def first_has_all(bounds: Bounds) -> bool:
    """Whether all channels are the first worker's."""
    return bounds[1] == bounds[-1]
