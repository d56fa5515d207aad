"""What an int8 file says beside its weights: which parts of the graph are computed in whole numbers, and their ranges.

Input: the fact `int8` of a file, and its graph. Output: `Part`s, in order, that make up the whole graph. All of it is
checked here, as anybody can write a file.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from ...errors import WireError
from ...graph import INPUT, Node
from ...model import Floats
from .network import Range

LEVELS = 255  # of a range's bytes
MOST = 1e30


@dataclass(frozen=True)
class Part:
    """Consecutive nodes that read one value, called INPUT, and give one; with ranges, they are computed in integers."""

    nodes: tuple[Node, ...]
    ranges: Mapping[str, Range] | None = None


def write_range(low: Floats, high: Floats) -> list[object]:
    """A range as JSON: the largest value, then low and high ends in 255ths of it, a byte per channel, rounded outwards.

    Low ends that are all zero are left out.
    """
    most = float(np.float32(max(np.abs(low).max(initial=0), np.abs(high).max(initial=0)))) or 1.0
    ends = [np.clip(np.ceil(np.maximum(part, 0) / most * LEVELS - 1e-3), 0, LEVELS) for part in (-low, high)]
    texts = [b64encode(part.astype(np.uint8).tobytes()).decode() for part in ends]
    return [most, texts[0] if ends[0].any() else "", texts[1]]


def read_range(name: str, given: object) -> Range:
    """The ends of a range, per channel."""
    match given:
        case [int() | float() as most, str() as low, str() as high] if isfinite(most) and 0 < most < MOST:
            pass
        case _:
            raise WireError(f"int8: the range of {name!r} must be a positive number and two texts of base64.")
    try:
        ends = [np.frombuffer(b64decode(text, validate=True), np.uint8).astype(np.float32) for text in (low, high)]
    except (Error, ValueError) as error:
        raise WireError(f"int8: the range of {name!r} is not base64: {error}") from None
    if not low:
        ends[0] = np.zeros_like(ends[1])
    if ends[0].size != ends[1].size:
        raise WireError(f"int8: the range of {name!r} has {ends[0].size:,} low ends and {ends[1].size:,} high ends.")
    step = np.float32(most) / np.float32(LEVELS)
    return -step * ends[0], step * ends[1]


def parts_of(given: object, graph: Sequence[Node]) -> list[Part]:
    """The parts of a graph: those in integers that the fact `int8` lists, and what lies before, between and after."""
    if not isinstance(given, list):
        raise WireError(f"int8 must be a list of parts. Received: {type(given).__name__}.")
    places = {INPUT: -1} | {node.output: place for place, node in enumerate(graph)}
    made: list[Part] = []
    done = -1
    for item in given:
        match item:
            case {"input": str() as first, "output": str() as last, "ranges": dict() as ranges}:
                start, end = places.get(first, -2), places.get(last, -2)
            case _:
                raise WireError("int8: a part must have an input, an output and ranges.")
        if not done <= start < end:
            raise WireError(f"int8: a part from {first!r} to {last!r} is not in the graph, or not in its order.")
        if start > done:
            made.append(Part(cut(graph, done, start)))
        read = {str(name): read_range(str(name), found) for name, found in ranges.items()}
        made.append(Part(cut(graph, start, end), read))
        done = end
    if done < len(graph) - 1:
        made.append(Part(cut(graph, done, len(graph) - 1)))
    return made


def clean_cut(graph: Sequence[Node], place: int) -> bool:
    """Whether all that comes after a node reads, of what came before, only this node's output."""
    value = graph[place].output if place >= 0 else INPUT
    known = {INPUT, *(node.output for node in graph[: place + 1])} - {value}
    return not any(name in known for node in graph[place + 1 :] for name in node.inputs)


def cut(graph: Sequence[Node], start: int, end: int) -> tuple[Node, ...]:
    """The nodes after `start` up to `end`, which read the value at `start` as INPUT."""
    for place in (start, end):
        if place < len(graph) - 1 and not clean_cut(graph, place):
            name = graph[place].output if place >= 0 else INPUT
            raise WireError(f"int8: a part cannot end at {name!r}: later layers read what came before it, too.")
    value = graph[start].output if start >= 0 else INPUT
    nodes = graph[start + 1 : end + 1]
    return tuple(
        replace(node, inputs=tuple(INPUT if name == value else name for name in node.inputs)) for node in nodes
    )
