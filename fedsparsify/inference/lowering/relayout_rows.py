"""Rows that copy entries to other places, and rows that write constants.

Input: a `Relayout` or a `Constant` and the storage of its values. Output: rows, added to a `ProgramRows`. A row counts
whole channels that stay channels; all else is in its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..frontend.steps import Constant, Part, Relayout
from ..layout.storage import Storage
from .constants import int32
from .index_tables import PIXEL_BYTES, runs_of
from .program_rows import ProgramRows
from .rows import ConstantRow, CopyRow, MoveRow, View

Numbers = NDArray[np.int64]
MOST_ROWS = 64  # of a part; with more, channels are counted by the table too


def write_relayout(
    rows: ProgramRows, step: Relayout, sources: Sequence[Storage], target: Storage, first_sample: int
) -> None:
    """All parts of a step, and what lies outside of them."""
    made: list[tuple[CopyRow, Storage | None]] = []
    for part in step.parts:
        made += [(row, sources[part.source]) for row in _part_rows(rows, step, part, sources[part.source], target)]
    if step.fill is not None:
        made += [(row, None) for row in _fill_rows(rows, step, target)]
    _write(rows, made, sources, target, first_sample)


def write_constant(rows: ProgramRows, step: Constant, target: Storage, first_sample: int) -> None:
    """Values that all samples have alike."""
    channels, pixels = step.values.shape[0], prod(step.values.shape[1:])
    rows.expect(PIXEL_BYTES * pixels + 8 * step.values.size, f"layer {step.name!r}")
    source = View(rows.params.add(step.values), channel=pixels)
    old, new = np.arange(pixels), entry_offsets(rows, target, np.arange(pixels))
    row = _row(rows, ConstantRow, source, View.of(target), old, new, channels, spread=_spread(rows, target))
    _write(rows, [(row, None)], [], target, first_sample)


def entry_offsets(rows: ProgramRows, storage: Storage, numbers: Numbers) -> Numbers:
    """Where the entries of a value lie, from its first pixel on, for the first sample of a vector."""
    channel, pixel = np.divmod(numbers, prod(storage.shape[1:]))
    where: Numbers = rows.pixels(storage, 1)[0].astype(np.int64)
    return np.asarray(channel * storage.channel + where[pixel], np.int64)


def samples_of(rows: ProgramRows, storage: Storage) -> int:
    """Samples of a run that share a vector."""
    return 1 if rows.block.single else storage.samples


def _spread(rows: ProgramRows, storage: Storage) -> bool:
    """Whether a vector holds one pixel of as many samples as it has lanes, which are copied together."""
    return storage.grid == (1, 1) and not rows.block.single


def _part_rows(rows: ProgramRows, step: Relayout, part: Part, source: Storage, target: Storage) -> Iterator[CopyRow]:
    near, far = prod(source.shape[1:]), prod(target.shape[1:])
    counted = [atom for atom in part.atoms if _whole(atom[1], near) and _whole(atom[2], far)]
    widest = max(counted, key=lambda atom: atom[0], default=(1, 0, 0))
    apart = [atom for atom in counted if atom is not widest]
    if prod(atom[0] for atom in apart) > MOST_ROWS:
        apart = []
    listed = [atom for atom in part.atoms if atom is not widest and atom not in apart]
    count = prod(atom[0] for atom in listed)
    rows.expect((PIXEL_BYTES + 64 * (1 if rows.block.single else 4)) * count, f"layer {step.name!r}")
    old, new = (_numbers(listed, place) for place in (1, 2))
    first_old, first_new = part.source_offset, part.target_offset
    starts = zip(_numbers(apart, 1), _numbers(apart, 2), strict=True)
    for more_old, more_new in starts:
        old_channel, old_rest = divmod(first_old + int(more_old), near)
        new_channel, new_rest = divmod(first_new + int(more_new), far)
        reads, writes = View.of(source).moved(old_channel), View.of(target).moved(new_channel)
        reads = reads._replace(channel=widest[1] // near * source.channel)
        writes = writes._replace(channel=widest[2] // far * target.channel)
        at_old = entry_offsets(rows, source, old + old_rest)
        at_new = entry_offsets(rows, target, new + new_rest)
        yield _row(rows, MoveRow, reads, writes, at_old, at_new, widest[0], spread=_spread(rows, target))


def _whole(stride: int, pixels: int) -> bool:
    return stride % pixels == 0


def _numbers(atoms: Sequence[tuple[int, int, int]], place: int) -> Numbers:
    made = np.zeros(1, np.int64)
    for atom in atoms:
        made = (made[:, None] + np.arange(atom[0]) * atom[place]).ravel()
    return made


def _fill_rows(rows: ProgramRows, step: Relayout, target: Storage) -> Iterator[CopyRow]:
    """What no part writes, if it is the same pixels of every channel; else all channels that are not whole."""
    channels, pixels = target.shape[0], prod(target.shape[1:])
    rows.expect(24 * channels * pixels, f"layer {step.name!r}")
    covered = np.zeros(channels * pixels, np.bool_)
    for part in step.parts:
        covered[_numbers(part.atoms, 2) + part.target_offset] = True
    left = ~covered.reshape(channels, pixels)
    source = View(rows.params.add(np.array([step.fill], np.float32)), channel=0)
    patterns, which = np.unique(left, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        numbers, found = np.flatnonzero(pattern), np.flatnonzero(which.ravel() == number)
        for run in np.split(found, np.flatnonzero(np.diff(found) > 1) + 1) if numbers.size else []:
            new = entry_offsets(rows, target, numbers)
            writes = View.of(target).moved(int(run[0]))
            spread = _spread(rows, target)
            yield _row(rows, ConstantRow, source, writes, np.zeros_like(new), new, run.size, spread=spread)


def _row(
    rows: ProgramRows, kind: type[CopyRow], reads: View, writes: View, old: Numbers, new: Numbers, channels: int,
    spread: bool,
) -> CopyRow:  # fmt: skip
    """A row of some channels that copies entries; with `spread`, those of all lanes."""
    if spread:
        lane = np.arange(rows.block.lanes)
        old = (old[:, None] + (0 * lane if kind is ConstantRow else lane)).ravel()
        new = (new[:, None] + lane).ravel()
    if kind is ConstantRow:
        pairs, run = int32(np.stack([old, new], 1)), 1
    else:
        pairs, run = runs_of(int32(old[None]), int32(new[None]))
    return kind(
        source=reads,
        target=writes,
        channels=channels,
        pairs=rows.indices.add(pairs),
        pair_count=len(pairs),
        pairs_per_sample=len(pairs),
        run=run,
    )


def _write(
    rows: ProgramRows,
    made: Sequence[tuple[CopyRow, Storage | None]],
    sources: Sequence[Storage],
    target: Storage,
    first_sample: int,
) -> None:
    """Divide rows among the workers by their channels; a worker with a copy of the target writes all of it."""
    rows.before_free_read(sources, first_sample)
    workers = rows.workers
    shift = 0 if _spread(rows, target) else prod(target.grid)
    count = 1 if _spread(rows, target) else samples_of(rows, target)
    for sample in range(count):
        for row, source in made:
            steps = {"source": 0, "second": 0, "target": 0}
            moved = replace(row, first_sample=first_sample + sample)
            moved = replace(moved, target=row.target.moved(0, sample * shift))
            if source is not None:
                moved = replace(moved, source=row.source.moved(0, sample * shift))
            for worker in range(workers.count):
                first, last = rows.free_share(target, worker, row.channels)
                if source is not None:
                    steps["source"] = worker * source.worker_step
                steps["target"] = worker * target.worker_step
                if first < last:
                    workers.rows[worker].append(moved.share(first, last, steps))
    rows.after_free_write(target)
