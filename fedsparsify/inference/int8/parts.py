"""The parts of an int8 network, made ready to run one after the other: in whole numbers, or in float.

Input: the fact `int8` of a file, its graph and tensors. Output: an `Executor` per part; floats go between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import WireError
from ...graph import Node
from ...model import Floats, Survivors
from ..frontend.fusion import fuse
from ..frontend.network import Network
from ..layout.memory_budget import MemoryBudget
from ..planner import Planner
from ..runtime.executor import Executor
from ..runtime.native_calls import INT8_CODE, native_calls
from .facts import Part, parts_of
from .network import check_row
from .planner import IntPlanner

LEAST_BATCH = 16  # samples; fewer leave most lanes of a vector of 16-bit integers empty, and are served in float


def int8_parts(
    given: object,
    graph: Sequence[Node],
    tensors: Mapping[str, Floats | Survivors],
    threads: int,
    lanes: int,
    memory: MemoryBudget,
) -> list[Executor]:
    """The parts of a network, in order; none where all of it is computed in float."""
    parts = parts_of(given, graph)
    if all(part.ranges is None for part in parts):
        return []
    return [executor_of(part, tensors, threads, lanes, memory) for part in parts]


def executor_of(
    part: Part, tensors: Mapping[str, Floats | Survivors], threads: int, lanes: int, memory: MemoryBudget
) -> Executor:
    """A part made ready to run."""
    if part.ranges is None:
        planner = Planner(Network(part.nodes, tensors, memory), threads, lanes, "auto", memory)
        return Executor(native_calls(lanes), planner, threads, memory)
    network = fuse(part.nodes, tensors, memory)
    if reason := check_row(network.steps, part.ranges):
        raise WireError(f"int8: {reason}")
    return Executor(
        native_calls(lanes, INT8_CODE), IntPlanner(network, part.ranges, threads, lanes, memory), threads, memory
    )
