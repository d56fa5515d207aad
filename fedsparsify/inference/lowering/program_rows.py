"""The rows and constants of a program under construction.

Input: rows for all channels of a value. Output: the rows of each worker, with barriers and fetches where a worker reads
what another wrote, and the constant pools that the rows point into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from ...model import Floats
from ..layout.arena import LINE_FLOATS
from ..layout.memory_budget import MemoryBudget
from ..layout.network_layout import SampleBlock
from ..layout.storage import Storage
from .constants import ConstantPool
from .convolution_rows import ConvolutionRow
from .index_tables import PIXEL_BYTES, Integers, halo_table, pixels_of
from .rows import (
    AffineRow,
    ChannelRow,
    FetchRow,
    HaloRow,
    MatMulRow,
    NormRow,
    PackRow,
    PoolRow,
    Row,
    SoftmaxRow,
    SpreadRow,
    TransposeRow,
    View,
)
from .workers import Bounds, Workers

ROW_BYTES = 2048  # of a row before it is encoded, at the most
FILLING = (PackRow, SpreadRow, TransposeRow, HaloRow)  # rows that each worker may run on its own copy of a value


class StripPart(NamedTuple):
    """A strip: some channels of one worker."""

    worker: int
    first: int
    last: int

    def shift(self, storage: Storage) -> int:
        """Floats from where a value would lie to where this worker has it; of some values only a strip is stored."""
        return self.worker * storage.worker_step - (self.first * storage.channel if storage.strip else 0)


class ProgramRows:
    """Collects the rows of every worker and their constants, within a memory budget."""

    spreads: ClassVar[bool] = True  # whether there is code that reads an image by squares of floats

    def __init__(self, block: SampleBlock, value_floats: int, memory: MemoryBudget) -> None:
        """`value_floats`: of all values in the arena."""
        self.block, self.value_floats, self.memory = block, value_floats, memory
        self.workers = Workers(block.workers)
        self.stream, self.params, self.indices = (
            ConstantPool(np.int32),
            ConstantPool(np.float32),
            ConstantPool(np.int32),
        )
        self.strip: StripPart | None = None  # for which rows are written at present
        self._workspace = 0  # floats per worker

    @property
    def arena_floats(self) -> int:
        """Floats of working memory: values, the workspace of each worker, and a guard."""
        return self.value_floats + self.block.workers * self._workspace + self.block.lanes

    def reserve_workspace(self, floats: int) -> None:
        """Let each worker have a workspace of at least so many floats."""
        self._workspace = max(self._workspace, -(-floats // LINE_FLOATS) * LINE_FLOATS)

    def expect(self, amount: int, what: str) -> None:
        """Refuse what does not fit beside the arena, the rows, and the constants, which are joined by a copy."""
        rows = sum(map(len, self.workers.rows))
        constants = self.stream.bytes + self.params.bytes + self.indices.bytes
        self.memory.expect(4 * self.arena_floats + ROW_BYTES * rows + 2 * constants + amount, what)

    def pixels(self, storage: Storage, samples: int) -> Integers:
        """A table of pixels, if there is memory for it."""
        self.expect(PIXEL_BYTES * samples * prod(storage.shape[1:]), "a table of pixels")
        return pixels_of(storage, samples)

    def finished(self) -> list[list[Row]]:
        """The rows of each worker, each with a workspace of its own after the values."""
        made: list[list[Row]] = []
        for worker, rows in enumerate(self.workers.rows):
            workspace = self.value_floats + worker * self._workspace
            made.append([_with_workspace(row, workspace) for row in rows])
        return made

    def divide(
        self,
        row: ChannelRow,
        reads: Sequence[Storage],
        writes: Storage,
        params: Callable[[int, int], Floats] | None = None,
    ) -> None:
        """Divide a row among the workers: each gets some of the channels, or all of its band or of its own copy.

        `params(first, last)` are the constants of some channels.
        """
        if self.strip:
            worker, first, last = self.strip
            views = {"source": reads[0], "second": reads[-1], "target": writes}
            shifts = {name: self.strip.shift(storage) for name, storage in views.items()}
            self._add_share(row, worker, first, last, shifts, params)
            return
        bounds = self.workers.bounds(reads[0])
        each_all = (
            writes.bands > 1 or writes.private or (isinstance(row, FILLING) and self.workers.complete_copies(writes))
        )
        shares = self.workers.all_channels(writes) if each_all else list(pairwise(bounds))
        self.before_read(reads, bounds, row.first_sample)
        steps = {"source": reads[0].worker_step, "second": reads[-1].worker_step, "target": writes.worker_step}
        for worker, (first, last) in enumerate(shares):
            if first < last:
                shifts = {name: worker * step for name, step in steps.items()}
                self._add_share(row, worker, first, last, shifts, params)
        if not each_all:
            self.workers.record_write(writes, bounds)

    def _add_share(
        self,
        row: ChannelRow,
        worker: int,
        first: int,
        last: int,
        shifts: Mapping[str, int],
        params: Callable[[int, int], Floats] | None,
    ) -> None:
        """Add a worker's share of a row."""
        share = row.share(first, last, shifts)
        if isinstance(share, (AffineRow, PoolRow)) and params is not None:
            share = replace(share, params=self.params.add(params(first, last)))
        self.workers.rows[worker].append(share)

    def before_read(self, reads: Sequence[Storage], bounds: Bounds, first_sample: int, whole: bool = False) -> None:
        """Let workers wait for, and fetch, what they read: the channels that they write next, or the `whole` value."""
        for storage in reads:
            for worker, other, first, last in self.workers.before_read(storage, bounds, whole):
                view = View.of(storage).moved(first)
                source, target = (view.moved(0, number * storage.worker_step) for number in (other, worker))
                all_lanes = self.indices.add(np.ones(storage.lanes))
                fetch = FetchRow(
                    first_sample=first_sample,
                    source=source,
                    target=target,
                    channels=last - first,
                    block=storage.block,
                    lane_mask=all_lanes,
                )
                halo = replace(self.halo_row(storage, first_sample), target=target, channels=last - first)
                self.workers.rows[worker] += [fetch, halo]

    def before_free_read(self, reads: Sequence[Storage], first_sample: int) -> None:
        """Let workers wait for, and fetch, all of some values: each may read any part of them."""
        count = self.workers.count
        for storage in reads if count > 1 else ():
            if self.workers.unsynchronized(storage) and not storage.worker_step:
                self.workers.add_barrier()
            self.before_read([storage], self.workers.nothing_yet(storage), first_sample, whole=True)

    def free_share(self, writes: Storage, worker: int, count: int) -> tuple[int, int]:
        """The part of `count` entries that a worker writes: all, where it has a copy of the value."""
        if writes.worker_step:
            return 0, count
        return count * worker // self.workers.count, count * (worker + 1) // self.workers.count

    def after_free_write(self, writes: Storage) -> None:
        """Let workers wait for what others wrote of a value that they share."""
        if self.workers.count > 1 and not writes.worker_step:
            self.workers.add_barrier()

    def halo_row(self, storage: Storage, first_sample: int) -> HaloRow:
        """The row that writes a value's halo."""
        if storage.ragged:
            cells = storage.samples * prod(storage.grid) * prod(storage.block)
            self.expect(PIXEL_BYTES * cells, "a table of pixels")
        table, outside_count, frame_rows, border = halo_table(storage)
        return HaloRow(
            first_sample=first_sample,
            target=View.of(storage),
            block=storage.block,
            halo=self.indices.add(table),
            outside_count=outside_count,
            frame_rows=frame_rows,
            border=border,
            fill=storage.fill,
        )


def _with_workspace(row: Row, workspace: int) -> Row:
    """A row with the place of its worker's working memory."""
    if isinstance(row, ConvolutionRow | NormRow | SoftmaxRow):
        return replace(row, workspace=workspace)
    return replace(row, scratch=workspace) if isinstance(row, MatMulRow) else row
