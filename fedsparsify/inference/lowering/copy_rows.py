"""Rows that copy values: from the input, between levels, into the output, and across the borders of blocks.

Input: the storage of the value on both sides. Output: rows, added to a `ProgramRows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from ..layout.storage import Storage
from .constants import int32
from .index_tables import Integers, batch_pixels, runs_of
from .program_rows import ProgramRows
from .rows import CopyRow, FetchRow, MoveRow, PackRow, SpreadRow, TransposeRow, UnpackRow, View

FAR_ARENA = 1 << 19  # floats of an arena whose values do not stay in the second-level cache
Copy = TypeVar("Copy", bound=CopyRow)


def pack_input(rows: ProgramRows, batch: Storage, target: Storage, first_sample: int, samples: int) -> None:
    """Input → arena."""
    channels, height, width = batch.shape
    if (height, width) == (1, 1):
        source = View(first_sample * channels, channel=1)
        row = TransposeRow(
            first_sample=first_sample, source=source, target=View.of(target), depth=channels, samples=samples
        )
        rows.divide(row, [batch], target)
        return
    batch.worker_step = prod(target.shape[1:]) if target.bands > 1 else 0
    source = View(first_sample * prod(batch.shape), channel=height * width, row=width)
    whole = samples == 1 and not target.ragged and target.block[1] >= target.lanes == prod(target.grid)
    if rows.spreads and whole:
        by, bx = np.divmod(np.arange(target.lanes), target.grid[1])
        offsets = rows.indices.add(int32(4 * (by * target.block[0] * width + bx * target.block[1])))
        wide = SpreadRow(
            first_sample=first_sample, source=source, target=View.of(target), block=target.block, offsets=offsets
        )
        rows.divide(wide, [batch], target)
        return
    old, new = batch_pixels(target.shape, samples), rows.pixels(target, samples)
    rows.divide(_copy(PackRow, rows, source, View.of(target), old, new, first_sample), [batch], target)


def unpack_output(rows: ProgramRows, source: Storage, logits: Storage, first_sample: int, samples: int) -> None:
    """Arena → output."""
    shape = source.shape
    target = View(first_sample * prod(shape), channel=shape[1] * shape[2])
    old, new = rows.pixels(source, samples), batch_pixels(shape, samples)
    rows.divide(_copy(UnpackRow, rows, View.of(source), target, old, new, first_sample), [source], logits)


def move_to_level(
    rows: ProgramRows, source: Storage, target: Storage, first_sample: int, samples: int, target_samples: int
) -> None:
    """A value of one level into the lanes of a later level, which serves `target_samples` at a time."""
    lane = first_sample % target_samples * prod(target.grid)
    view = View.of(target).moved(0, lane)
    old, new = rows.pixels(source, samples), rows.pixels(target, samples)
    if target.gate:  # every lane of an image gets it
        old, new = old.repeat(prod(target.grid), 1), int32(new + np.arange(prod(target.grid)))
    workers = rows.workers
    if source.bands == 1:
        row = _copy(MoveRow, rows, View.of(source), view, old, new, first_sample)
        far = rows.block.samples > 1 and rows.value_floats > FAR_ARENA
        rows.divide(replace(row, prefetch=far), [source], target)
        return
    bands = [
        _copy(MoveRow, rows, View.of(source).moved(0, band * source.worker_step), view, old, part, first_sample)
        for band, part in enumerate(np.split(new, source.bands, axis=1))
    ]
    if target.worker_step:
        workers.add_barrier()  # as each worker takes all bands into its copy
    for worker in range(workers.count):
        for band, row in enumerate(bands):
            if target.worker_step or band == worker:
                steps = {"source": 0, "target": worker * target.worker_step}
                workers.rows[worker].append(row.share(0, source.shape[0], steps))
    if not target.worker_step:
        workers.add_barrier()


def write_halo(rows: ProgramRows, storage: Storage, first_sample: int) -> None:
    """The halo of a value, if it has one; across bands, it is fetched from the workers above and below."""
    if not storage.haloed:
        return
    rows.divide(rows.halo_row(storage, first_sample), [storage], storage)
    if storage.bands > 1:
        rows.workers.add_barrier()
        for worker in range(rows.workers.count):
            rows.workers.rows[worker] += _seams(rows, storage, worker, first_sample)


def flatten(rows: ProgramRows, source: Storage, target: Storage, first_sample: int) -> None:
    """A view where the pixels already lie end to end, else a copy by the first worker."""
    workers = rows.workers
    bounds = workers.first_only(target)
    rows.before_read([source], bounds, first_sample, whole=True)
    if target.offset != source.offset:
        old = (rows.pixels(source, 1)[0][:, None] + np.arange(source.lanes)).astype(np.int32).reshape(1, -1)
        view = View(target.origin, channel=old.size)
        row = _copy(MoveRow, rows, View.of(source), view, old, np.arange(old.size, dtype=np.int32)[None], first_sample)
        workers.rows[0].append(row.share(0, source.shape[0], {"source": 0, "target": 0}))
    if target.offset != source.offset or workers.unsynchronized(source):
        workers.record_write(target, bounds)


def _copy(
    kind: type[Copy], rows: ProgramRows, source: View, target: View, old: Integers, new: Integers, first_sample: int
) -> Copy:
    """A row that copies the pixels at `old` of each channel to `new`; both are (samples, pixels)."""
    pairs, run = runs_of(old, new)
    return kind(
        first_sample=first_sample,
        source=source,
        target=target,
        pairs=rows.indices.add(pairs),
        pair_count=len(pairs),
        pairs_per_sample=len(pairs) // len(old),
        run=run,
    )


def _seams(rows: ProgramRows, storage: Storage, worker: int, first_sample: int) -> Iterator[FetchRow]:
    """Rows that fetch what borders on a worker's band from the bands above and below it."""
    across, edge = storage.grid[1], storage.lanes - storage.grid[1]
    row, step, lane = storage.row, storage.worker_step, np.arange(storage.lanes)
    corner = View.of(storage).moved(0, -storage.before[1] * storage.lanes)
    above, below = storage.before[0], storage.after[0]
    seams = []
    if above and worker > 0:
        source = corner.moved(0, (worker - 1) * step + (storage.block[0] - above) * row + edge)
        seams.append((source, corner.moved(0, worker * step - above * row), above, lane < across))
    if below and worker < rows.workers.count - 1:
        source = corner.moved(0, (worker + 1) * step - edge)
        seams.append((source, corner.moved(0, worker * step + storage.block[0] * row), below, lane >= edge))
    for source, target, height, mask in seams:
        yield FetchRow(
            first_sample=first_sample,
            source=source,
            target=target,
            channels=storage.shape[0],
            block=(height, row // storage.lanes),
            lane_mask=rows.indices.add(mask),
        )
