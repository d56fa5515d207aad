"""From a graph to fused steps: batch norms and clamps become part of the step before them.

Each operation of `ops` says by `lower` what is to be computed; `Fusion` makes steps of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError, nearest
from ...graph import INPUT, Node
from ...model import Floats, Survivors
from ...ops import OPERATIONS, roles, shapes_of
from ...ops.base import FrontEnd
from ...ops.base import Shape as KnownShape
from ..layout.memory_budget import MemoryBudget
from .steps import CLAMPED, Activation, Add, Affine, Conv, Flatten, Pair, Pool, Softmax, Step
from .weights import Weights

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width; a flat value of n features is (n, 1, 1)


@dataclass(frozen=True)
class Fused:
    """A graph as steps, in the order in which they run."""

    steps: tuple[Step, ...]
    nodes: tuple[Node, ...]
    names: Mapping[str, str]  # value of the graph → step that gives it
    tensors: Mapping[str, tuple[int, ...]]  # shapes

    def values(self, sample: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Shape of every value of the graph for samples of a shape."""
        return values_of(self.nodes, self.tensors, sample)

    def shapes(self, sample: tuple[int, ...]) -> dict[str, Shape]:
        """Shape of what every step gives."""
        values = self.values(sample)
        shapes = {self.names[name]: _image(values[name]) for name in (INPUT, *(node.output for node in self.nodes))}
        for step in reversed(self.steps):  # a step on the way to a value has its shape
            for name in step.inputs:
                shapes.setdefault(name, shapes[step.name])
        return shapes

    def output(self, sample: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the network's output."""
        return self.values(sample)[self.nodes[-1].output]


def values_of(
    nodes: Sequence[Node], tensors: Mapping[str, tuple[int, ...]], sample: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Shape of every value of a graph for samples of a shape; what does not fit is an error with its layer."""
    if not 1 <= len(sample) <= 3 or min(sample) < 1:
        raise ModelError(f"a sample is (features,) or (channels, height, width). Received: {sample}.")
    return shapes_of(nodes, tensors, sample)


def _image(shape: tuple[int, ...]) -> Shape:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)


def fuse(nodes: Sequence[Node], tensors: Mapping[str, Floats | Survivors], memory: MemoryBudget | None = None) -> Fused:
    """The steps that a graph stands for. What the engine cannot run is an error that names the layer."""
    if not nodes:
        raise ModelError("the model's graph is empty.")
    outputs, reads = frozenset(node.output for node in nodes), Counter(name for node in nodes for name in node.inputs)
    fusion = Fusion(outputs, reads, tensors, memory or MemoryBudget())
    for node in nodes:
        fusion.read(node)
    steps = list(fusion.steps.values())
    output = fusion.steps[fusion.names[nodes[-1].output]]
    shapes = {name: tuple(tensors[name].shape) for node in nodes for name in node.tensors.values()}
    return Fused(tuple(steps[: steps.index(output) + 1]), tuple(nodes), fusion.names, shapes)


@dataclass
class Fusion:
    """Steps under construction, as operations ask for them (see ops.base.FrontEnd)."""

    outputs: frozenset[str]  # names of all values
    reads: Counter[str]  # how often each value is read
    tensors: Mapping[str, Floats | Survivors]
    memory: MemoryBudget
    steps: dict[str, Step] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=lambda: {INPUT: INPUT})
    shapes: dict[str, KnownShape] = field(default_factory=lambda: {INPUT: None})  # of values, as far as weights tell

    def read(self, node: Node) -> None:
        """Make a step of a node, or make it part of one."""
        operation = OPERATIONS.get(node.op)
        if operation is None or operation.vanishes:
            known = [name for name, known in OPERATIONS.items() if not known.vanishes]
            raise ModelError(
                f"layer {node.output!r}: inference has no operation {node.op!r}. {nearest(node.op, known)}"
            )
        if unknown := [name for name in node.inputs if name not in self.names]:
            raise ModelError(f"layer {node.output!r} reads {unknown[0]!r}, which no layer before it gives.")
        if missing := [name for name in node.tensors.values() if name not in self.tensors]:
            raise ModelError(f"layer {node.output!r} needs the tensor {missing[0]!r}, which the model does not hold.")
        self._count(node)
        try:
            shapes = [self.shapes[name] for name in node.inputs]
            held = {role: tensor.shape for role, tensor in roles(node, self.tensors).items()}
            self.shapes[node.output] = operation.shape(node, shapes, held)
            self.lower(node)
        except KeyError as error:
            raise ModelError(f"layer {node.output!r} ({node.op}) lacks {error}.") from None
        except ModelError as error:
            raise ModelError(f"layer {node.output!r}: {error}") from None

    def lower(self, node: Node) -> None:
        """Let the operation say what is to be computed."""
        if OPERATIONS[node.op].sized:
            raise ModelError(f"{node.op} is computed for samples of one shape; none is known here.")
        OPERATIONS[node.op].lower(node, cast(FrontEnd, self))  # what is missing needs shapes: see shaped.py

    def _count(self, node: Node) -> None:
        """Take the memory of a node's constants; several nodes may name one tensor, and each gets a copy."""
        kept = 0
        for name in node.tensors.values():
            tensor = self.tensors[name]
            flat = len(tensor.shape) < 2
            left = tensor.values.size if isinstance(tensor, Survivors) else tensor.size
            kept += 8 * prod(tensor.shape) if flat else 12 * left + 4 * tensor.shape[0]
        self._take(node, kept)

    def _take(self, node: Node, kept: int) -> None:
        self.memory.expect(3 * kept, f"layer {node.output!r}")  # copies on the way
        self.memory.take(kept, f"layer {node.output!r}")

    def _give(self, node: Node, step: Step) -> None:
        self.steps[step.name] = step
        self.names[node.output] = step.name

    def _unused(self, name: str) -> str:
        """A name for a step on the way that no value of the graph has."""
        while name in self.outputs:
            name += "'"
        return name

    def _inputs(self, node: Node) -> tuple[str, ...]:
        return tuple(self.names[name] for name in node.inputs)

    def _sole(self, node: Node) -> Step | None:
        """The step before a node, if nothing else reads it: then the node may become part of it."""
        source = node.inputs[0]
        return self.steps.get(self.names[source]) if self.reads[source] == 1 else None

    def tensor(self, node: Node, role: str) -> Floats:
        """A copy of a node's tensor, so that the model's one large vector need not stay."""
        found = self.tensors[node.tensors[role]]
        return found.dense() if isinstance(found, Survivors) else found.copy()

    def _weights(self, node: Node) -> tuple[Weights, Floats]:
        weight = Weights.of(self.tensors[node.tensors["weight"]])
        zeros = np.zeros(weight.shape[0], np.float32)
        return weight, self.tensor(node, "bias") if "bias" in node.tensors else zeros

    def convolution(self, node: Node) -> None:
        """A convolution by the node's attributes."""
        a, (weight, bias) = node.attributes, self._weights(node)
        stride, padding, dilation = (_pair(a[key]) for key in ("stride", "padding", "dilation"))
        groups = int(a["groups"])
        self._give(node, Conv(node.output, self._inputs(node), weight, bias, stride, padding, dilation, groups))

    def linear(self, node: Node) -> None:
        """A product with the node's weight."""
        self._give(node, Conv(node.output, self._inputs(node), *self._weights(node), flat=True))

    def affine(self, node: Node, scale: NDArray[np.float64], shift: NDArray[np.float64]) -> None:
        """Scale and shift per channel."""
        before = self._sole(node)
        with np.errstate(all="ignore"):  # what is beyond float32 becomes infinite, as in training
            affine = scale.astype(np.float32), shift.astype(np.float32)
            if isinstance(before, Conv) and _unclamped(before):
                if before.bias.size != scale.size:
                    raise ModelError(f"it takes {scale.size:,} channels. Received: {before.bias.size:,}.")
                bias = (before.bias * scale + shift).astype(np.float32)
                self._give(node, replace(before, weight=before.weight.scaled(scale), bias=bias))
                return
        if isinstance(before, (Pool, Affine)) and before.affine is None and _unclamped(before):
            self._give(node, replace(before, affine=affine))
        else:
            self._give(node, Affine(node.output, self._inputs(node), affine))

    def clamp(self, node: Node, low: float, high: float) -> None:
        """Values below and above two bounds are set to them."""
        before = self._sole(node)
        if isinstance(before, CLAMPED) and _unclamped(before):
            self._give(node, replace(before, low=low, high=high))
        else:
            self._give(node, Affine(node.output, self._inputs(node), None, low, high))

    def activation(self, node: Node, slope: float = 0.0) -> None:
        """The operation's own `kernel`, for each value alone."""
        self._give(node, Activation(node.output, self._inputs(node), node.op, slope))

    def pool(self, node: Node, mean: bool) -> None:
        """The largest or the mean value of windows, by the node's attributes."""
        a = node.attributes
        kernel, stride, padding = (_pair(a[key]) for key in ("kernel", "stride", "padding"))
        counted = bool(a.get("count_padding", True))
        self._give(node, Pool(node.output, self._inputs(node), mean, kernel, stride, padding, bool(a["ceil"]), counted))

    def adaptive_pool(self, node: Node) -> None:
        """The mean of as many windows as the node's `size` says."""
        self._give(node, Pool(node.output, self._inputs(node), mean=True, size=_pair(node.attributes["size"])))

    def add(self, node: Node) -> None:
        """The sum of two values."""
        self._give(node, Add(node.output, self._inputs(node)))

    def flatten(self, node: Node) -> None:
        """All features of a sample in one row."""
        self._give(node, Flatten(node.output, self._inputs(node)))

    def softmax(self, node: Node) -> None:
        """Shares over the channels."""
        self._give(node, Softmax(node.output, self._inputs(node), int(node.attributes["axis"])))


def _unclamped(step: Conv | Pool | Affine | Add) -> bool:
    return step.low == -inf and step.high == inf


def _pair(value: Any) -> Pair:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def weight_vectors(steps: Sequence[Step], shapes: Mapping[str, Shape], lanes: int) -> float:
    """About how many vector multiplications one sample takes."""
    convolutions = [step for step in steps if isinstance(step, Conv)]
    return sum(s.weight.places.size * prod(shapes[s.name][1:]) for s in convolutions) / lanes
