"""Calibration: which layers of a network to compute in whole numbers, and the ranges of their values.

Input: a graph, its tensors and some samples. Output: the fact `int8` of a file (see facts.py), and the measured error
of each layer. A layer whose integers err by more than `WORST` stays in float, as do layers that integers do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ModelError
from ...graph import INPUT, Node
from ...model import Floats, Survivors
from ...native.machine import cores_here, lanes_here
from ..frontend.fusion import fuse
from ..frontend.steps import Conv, Step
from ..layout.memory_budget import MemoryBudget
from .facts import Part, clean_cut, cut, write_range
from .network import Range, unsupported
from .parts import executor_of

WORST = 0.05  # relative error of a layer's results, as a root mean square, beyond which it stays in float
HEADROOM = 1.6  # factor by which values may exceed those of the samples before they are clamped
CONVOLUTIONS = 2  # that a part in whole numbers has at the least


@dataclass(frozen=True)
class LayerError:
    """A layer's error in whole numbers, or why it stays in float."""

    name: str
    error: float | None
    reason: str = ""


@dataclass(frozen=True)
class Calibrated:
    """The fact `int8`, and what was measured."""

    fact: list[dict[str, object]]
    layers: list[LayerError]


def calibrate(graph: Sequence[Node], tensors: Mapping[str, Floats | Survivors], samples: Floats) -> Calibrated:
    """Measure every layer on the samples, and choose the parts of the network to compute in whole numbers."""
    network = fuse(graph, tensors)
    places = {network.names[node.output]: place for place, node in enumerate(graph)}  # the last node of each step
    named = _layer_names(graph, network.names)
    layers: list[LayerError] = []
    parts: list[dict[str, object]] = []
    run: list[tuple[Step, Range]] = []  # of the part that grows, each step with the range of its results
    entry: Range | None = None
    first, value, before = -1, samples, INPUT

    def close(last: int) -> None:
        nonlocal run
        if sum(isinstance(step, Conv) for step, _ in run) >= CONVOLUTIONS and entry is not None:
            ranges = {step.name: write_range(*found) for step, found in run if isinstance(step, Conv)}
            names = [graph[place].output if place >= 0 else INPUT for place in (first, last)]
            parts.append({"input": names[0], "output": names[1], "ranges": {INPUT: write_range(*entry), **ranges}})
        run = []

    known = -1  # the place whose value is known
    for step in network.steps:
        place = places[step.name]
        if not clean_cut(graph, place) and place < len(graph) - 1:
            close(known) if run else None
            layers.append(LayerError(named[step.name], None, "other layers read values from before it, too"))
            before = ""
            continue
        result = _float(graph, tensors, known, place, value)
        reason = unsupported(step) if step.inputs == (before,) else "it does not follow the layer before it alone"
        error = None
        if reason is None and isinstance(step, Conv):
            nodes = cut(graph, known, place)
            ranges = {INPUT: _range(value), step.name: _range(result)}
            error, reason = _error(Part(nodes, ranges), tensors, value, result)
        layers.append(LayerError(named[step.name], error, reason or ""))
        if reason is None and (run or isinstance(step, Conv)):
            if not run:
                first, entry = known, _range(value)
            run.append((step, _range(result)))
        elif run:
            close(known)
        known, value, before = place, result, step.name
    close(known)
    return Calibrated(parts, layers)


def _layer_names(graph: Sequence[Node], steps: Mapping[str, str]) -> dict[str, str]:
    """Step → the name that the network's author gave the layer; without tensors, its operation and the layer before."""
    owners: dict[str, str] = {}
    others: dict[str, str] = {}
    before = ""
    for node in graph:
        step = steps[node.output]
        if owner := next((name.rpartition(".")[0] for name in node.tensors.values()), ""):
            before = owners.setdefault(step, owner)
        others.setdefault(step, f"{node.op} after {before}" if before else node.op)
    return others | owners


def _float(graph: Sequence[Node], tensors: Mapping[str, Floats | Survivors], start: int, end: int, x: Floats) -> Floats:
    """The value at a place of the graph, from the value at an earlier one."""
    part = Part(cut(graph, start, end))
    return executor_of(part, tensors, cores_here(), lanes_here(), MemoryBudget()).serve(np.ascontiguousarray(x))


def _error(
    part: Part, tensors: Mapping[str, Floats | Survivors], x: Floats, expected: Floats
) -> tuple[float | None, str | None]:
    """The relative error of a part in whole numbers, and why it stays in float, if it does."""
    try:
        made = executor_of(part, tensors, cores_here(), lanes_here(), MemoryBudget()).serve(np.ascontiguousarray(x))
    except ModelError as refused:
        return None, str(refused)
    wrong, size = (float(np.sqrt(np.square(part, dtype=np.float64).mean())) for part in (made - expected, expected))
    error = wrong / size if size else 0.0
    return error, None if error <= WORST else f"it errs by {100 * error:.1f} %"


def _range(values: Floats) -> Range:
    """The range of each channel, with headroom and zero in it."""
    axes = (0, *range(2, values.ndim))
    low, high = np.minimum(values.min(axes), 0) * HEADROOM, np.maximum(values.max(axes), 0) * HEADROOM
    return low.astype(np.float32), high.astype(np.float32)
