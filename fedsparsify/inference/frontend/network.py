"""A network that is ready to be planned: its fused steps, for samples of any shape or of one.

Most graphs of convolutions become the same steps whatever the shape of a sample is. Where an operation must know the
shape (permutes, broadcasts, attention), steps are made for each shape that comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from threading import Lock
from weakref import finalize

from ...errors import ModelError
from ...graph import INPUT, Node
from ...model import Floats, Survivors
from ...ops import OPERATIONS, roles
from ...ops.base import Shape as KnownShape
from ..layout.memory_budget import MemoryBudget
from .fusion import Fused, Shape, fuse, values_of
from .shaped import ShapedFusion
from .steps import Step
from .views import line

MOST_SHAPES = 4  # of samples, whose steps are kept


@dataclass(frozen=True)
class ShapedSteps(Fused):
    """Steps for samples of one shape."""

    bases: Mapping[str, Shape] = field(default_factory=dict)  # what each step gives

    def shapes(self, sample: tuple[int, ...]) -> dict[str, Shape]:
        """Shape of what every step gives."""
        return {name: self.bases[name] for name in (INPUT, *(step.name for step in self.steps))}


class Network:
    """A graph with its tensors; `fused` gives the steps for samples of a shape."""

    def __init__(
        self, nodes: Sequence[Node], tensors: Mapping[str, Floats | Survivors], memory: MemoryBudget | None = None
    ) -> None:
        """What samples of no shape could run is refused now."""
        self._nodes, self._memory = tuple(nodes), memory or MemoryBudget()
        names = {name for node in nodes for name in node.tensors.values()}
        held = {name: tensors[name] for name in names if name in tensors}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
        self._unsure = False  # whether a shape may still come that needs steps of its own
        self._any = None if self._sized() else fuse(nodes, tensors, self._memory)
        self._tensors = held if self._any is None or self._unsure else {}
        self._lock = Lock()
        self._shaped: dict[tuple[int, ...], Fused] = {}

    @property
    def any_shape(self) -> bool:
        """Whether the steps are the same for samples of any shape."""
        return self._any is not None

    def _sized(self) -> bool:
        """Whether steps must be made for each shape of a sample, as far as weights tell."""
        known: dict[str, KnownShape] = {INPUT: None}
        for node in self._nodes:
            operation, inputs = OPERATIONS.get(node.op), [known.get(name) for name in node.inputs]
            if operation is None or not {*node.tensors.values()} <= self._shapes.keys():
                return False  # `fuse` says what is wrong
            if operation.needs_shapes(node, inputs):
                return True
            self._unsure |= None in inputs and node.op in ("add", "linear")
            try:
                known[node.output] = operation.shape(node, inputs, roles(node, self._shapes))
            except (ModelError, KeyError):
                return False
        return False

    def fused(self, sample: tuple[int, ...]) -> Fused:
        """The steps for samples of a shape."""
        values = values_of(self._nodes, self._shapes, sample)
        if self._any is not None:
            found = [node for node in self._nodes if self._is_special(node, values)]
            if not found:
                return self._any
            if not self._unsure:
                given = " and ".join(str(values[name]) for name in found[0].inputs)
                raise ModelError(f"layer {found[0].output!r}: the engine cannot take values of shapes {given} here.")
        with self._lock:
            if sample not in self._shaped:
                if len(self._shaped) >= MOST_SHAPES:
                    self._shaped.clear()
                self._shaped[sample] = self._fuse(sample, values)
            return self._shaped[sample]

    @staticmethod
    def _is_special(node: Node, values: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether a node needs steps that are made for the shapes of its values."""
        inputs = [values[name] for name in node.inputs]
        return OPERATIONS[node.op].needs_shapes(node, inputs) or any(
            len(shape) not in (1, 3) for shape in (*inputs, values[node.output])
        )

    def _fuse(self, sample: tuple[int, ...], values: Mapping[str, tuple[int, ...]]) -> Fused:
        for name, sides in values.items():
            self._memory.expect(4 * prod(sides), f"layer {name!r}, of {sides} values per sample,")
        outputs = frozenset(node.output for node in self._nodes)
        reads = Counter(name for node in self._nodes for name in node.inputs)
        taken = self._memory.taken
        fusion = ShapedFusion(outputs, reads, self._tensors, self._memory, lines=self._in_lines(values))
        fusion.begin(sample)
        try:
            for node in self._nodes:
                fusion.read(node)
            output = fusion.finish(self._nodes[-1].output)
        except ModelError:
            self._memory.give(self._memory.taken - taken)
            raise
        steps = _needed(list(fusion.steps.values()), output)
        made = ShapedSteps(tuple(steps), self._nodes, fusion.names, self._shapes, fusion.bases)
        finalize(made, self._memory.give, self._memory.taken - taken).atexit = False
        return made

    def _in_lines(self, values: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether tokens come in numbers that fill no rectangle, such as 197."""
        normed = [values[node.output] for node in self._nodes if node.op == "layer_norm"]
        return any(len(shape) == 2 and shape[0] > 1 and line(shape[0])[0] == 1 for shape in normed)


def _needed(steps: Sequence[Step], output: str) -> list[Step]:
    """The steps that the output is made from, itself last."""
    wanted, kept = {output}, []
    for step in reversed(steps):
        if step.name in wanted:
            wanted.update(step.inputs)
            kept.append(step)
    kept.reverse()
    return kept
