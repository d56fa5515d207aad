"""Rows of norms, softmax and matrix products, whose workers do not divide channels.

Input: a step and the storage of its values. Output: rows, added to a `ProgramRows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ..frontend.steps import MatMul, Operand
from ..kernels.program_table import MATMUL_ROWS, MATMUL_VECTORS
from ..layout.storage import Storage
from .program_rows import ProgramRows
from .relayout_rows import entry_offsets, samples_of
from .rows import MatMulRow, NormRow, SoftmaxRow, View

TABLE_BYTES = 96  # per entry of a table, while it is made


def write_by_pixels(rows: ProgramRows, row: NormRow | SoftmaxRow, source: Storage, target: Storage) -> None:
    """Divide a row among the workers by the rows, or else the columns, of each lane's block."""
    rows.reserve_workspace(2 * target.block[1] * target.lanes)
    rows.before_free_read([source], row.first_sample)
    height, breadth = target.block
    along = 0 if height >= rows.workers.count else 1
    for worker in range(rows.workers.count):
        first, last = rows.free_share(target, worker, target.block[along])
        if first == last:
            continue
        block = (last - first, breadth) if along == 0 else (height, last - first)
        views = []
        for view, storage in ((row.source, source), (row.target, target)):
            step = storage.row if along == 0 else storage.lanes
            views.append(view.moved(0, worker * storage.worker_step + first * step))
        rows.workers.rows[worker].append(replace(row, source=views[0], target=views[1], block=block))
    rows.after_free_write(target)


def write_product(
    rows: ProgramRows, step: MatMul, sources: Sequence[Storage], target: Storage, first_sample: int
) -> None:
    """Divide the matrices among the workers."""
    matrices, height = step.target.rows.shape
    depth = step.first.rows.shape[1] if step.first.turned else step.first.columns.size
    width = step.target.columns.size
    vectors = MATMUL_VECTORS * rows.block.lanes
    padded = -(-width // vectors) * vectors, -(-height // MATMUL_ROWS) * MATMUL_ROWS
    rows.reserve_workspace(depth * sum(padded) + prod(padded))
    entries = sum(operand.rows.size + operand.columns.size for operand in (step.first, step.second, step.target))
    rows.expect(TABLE_BYTES * entries, f"layer {step.name!r}")
    rows.before_free_read(sources, first_sample)
    storages = *sources, target
    for worker in range(rows.workers.count):
        first, last = rows.free_share(target, worker, matrices)
        if first == last:
            continue
        tables = [np.array([step.first.turned, step.second.turned])]
        for operand, storage in zip((step.first, step.second, step.target), storages, strict=True):
            tables += _table(rows, operand, storage, first, last)
        offsets = rows.indices.add(np.concatenate([*tables, 4 * padded[0] * np.arange(depth)]))
        for sample in range(samples_of(rows, target)):
            views = [
                View.of(storage).moved(0, sample * prod(storage.grid) + worker * storage.worker_step)
                for storage in storages
            ]
            row = MatMulRow(
                first_sample=first_sample + sample,
                source=views[0],
                second=views[1],
                target=views[2],
                channels=last - first,
                block=(height, width),
                depth=depth,
                offsets=offsets,
                slope=step.factor,
            )
            rows.workers.rows[worker].append(row)
    rows.after_free_write(target)


def _table(rows: ProgramRows, operand: Operand, storage: Storage, first: int, last: int) -> list[np.ndarray]:
    """Offsets by row of some matrices, and by column."""
    pixels = prod(storage.shape[1:])
    by_row = entry_offsets(rows, storage, operand.rows[first:last].ravel())
    return [by_row, operand.columns // pixels * storage.channel]
