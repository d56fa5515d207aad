"""Readable text of each stage of the engine: steps, layout, rows.

Input: what a stage gives. Output: lines of text. `Engine.explain` joins them for one shape of batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod

from ..graph import INPUT
from .frontend.fusion import Shape
from .frontend.steps import Conv, Step
from .layout.network_layout import NetworkLayout
from .layout.storage import Storage
from .lowering.rows import Row


def explain_steps(steps: Sequence[Step], shapes: Mapping[str, Shape]) -> Iterator[str]:
    """One line per step: its name, kind, inputs and output."""
    yield f"steps: {INPUT} is {_sides(shapes[INPUT])}"
    for step in steps:
        kept = f", {step.weight.places.size:,} of {prod(step.weight.shape):,} weights" if isinstance(step, Conv) else ""
        yield f"  {step.name}: {type(step).__name__}({', '.join(step.inputs)}) → {_sides(shapes[step.name])}{kept}"


def explain_layout(layout: NetworkLayout) -> Iterator[str]:
    """One line per level, and one per value that it reads or makes."""
    yield f"layout: {layout.floats:,} floats in the arena"
    for level, storages, samples in zip(layout.levels, layout.storages, layout.samples, strict=True):
        bands = f" in {level.bands} bands" if level.bands > 1 else ""
        yield f"  level of {_sides(level.grid)} blocks{bands}, samples at a time: {samples}"
        for name, storage in storages.items():
            yield f"    {name}: {_storage(storage)}"


def explain_rows(workers: Sequence[Sequence[Row]]) -> Iterator[str]:
    """One line per row of each worker: the kind of operation and its fields."""
    for worker, rows in enumerate(workers):
        yield f"rows of worker {worker}:"
        for row in rows:
            values = ((field.name, getattr(row, field.name)) for field in fields(row))
            yield f"  {row.kind.name} {' '.join(f'{name}={_value(value)}' for name, value in values)}"


def _storage(storage: Storage) -> str:
    halo = f", halo {storage.before} {storage.after}" if any(storage.before + storage.after) else ""
    return f"{_sides(storage.shape)} in blocks of {_sides(storage.block)}{halo}, from float {storage.offset:,}"


def _sides(sides: Sequence[int]) -> str:
    return " × ".join(map(str, sides))


def _value(value: object) -> str:
    return f"({','.join(map(str, value))})" if isinstance(value, tuple) else str(value)
