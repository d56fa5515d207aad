"""What the engine computes: a graph read into few kinds of steps, batch norms and clamps folded into what precedes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np

from ...errors import ModelError, nearest
from ...graph import INPUT, Node
from ...model import Floats, Survivors
from ..layout.memory import Memory
from .weights import Weights

Pair = tuple[int, int]
CURVES = ("leaky_relu", "sigmoid", "tanh", "silu", "hardswish", "gelu")


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution, then a clamp. A linear layer is one of 1 × 1 on a flat value."""

    name: str
    inputs: tuple[str, ...]
    weight: Weights  # (out, in / groups, kh, kw)
    bias: Floats  # (out,)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    flat: bool = False  # a linear layer, which takes rows of features
    low: float = -inf
    high: float = inf

    def part(self, first: int, last: int) -> Conv:
        """The same for some of the output channels."""
        return replace(self, weight=self.weight.part(first, last), bias=self.bias[first:last])


@dataclass(frozen=True, eq=False)
class Pool:
    """The largest or the mean value of windows, then scale and shift per channel, then a clamp."""

    name: str
    inputs: tuple[str, ...]
    mean: bool
    kernel: Pair = (0, 0)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    ceil: bool = False
    count_padding: bool = True
    size: Pair | None = None  # of an adaptive pool, which has no kernel
    affine: tuple[Floats, Floats] | None = None
    low: float = -inf
    high: float = inf

    @property
    def plain(self) -> bool:
        """Whether it takes the largest values of 2 × 2 pixels side by side, as most do."""
        squares = self.kernel == self.stride == (2, 2) and self.padding == (0, 0)
        return squares and not self.mean and not self.ceil and self.size is None

    @property
    def bare(self) -> bool:
        """Whether it is plain and no clamp follows it."""
        return self.plain and (self.low, self.high) == (-inf, inf)


@dataclass(frozen=True, eq=False)
class Affine:
    """Scale and shift per channel, then a clamp."""

    name: str
    inputs: tuple[str, ...]
    affine: tuple[Floats, Floats] | None = None
    low: float = -inf
    high: float = inf


@dataclass(frozen=True, eq=False)
class Add:
    """The sum of two values, then a clamp."""

    name: str
    inputs: tuple[str, ...]
    low: float = -inf
    high: float = inf


@dataclass(frozen=True, eq=False)
class Curve:
    """A function of each value alone that a clamp cannot say."""

    name: str
    inputs: tuple[str, ...]
    kind: str
    slope: float = 0.0


@dataclass(frozen=True, eq=False)
class Flatten:
    """All features of a sample in one row."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Softmax:
    """Shares over the channels."""

    name: str
    inputs: tuple[str, ...]
    axis: int


Step: TypeAlias = Conv | Pool | Affine | Add | Curve | Flatten | Softmax
CLAMPED = (Conv, Pool, Affine, Add)


def read_steps(
    nodes: Sequence[Node], tensors: Mapping[str, Floats | Survivors], memory: Memory | None = None
) -> tuple[Step, ...]:
    """The steps that a graph stands for. What the engine cannot run is an error that names the layer."""
    if not nodes:
        raise ModelError("the model's graph is empty.")
    reader = _Reader(Counter(name for node in nodes for name in node.inputs), tensors, memory or Memory())
    for node in nodes:
        reader.read(node)
    steps = list(reader.steps.values())
    output = reader.steps[reader.names[nodes[-1].output]]
    return tuple(steps[: steps.index(output) + 1])


@dataclass
class _Reader:
    reads: Counter[str]  # how often each value is read
    tensors: Mapping[str, Floats | Survivors]
    memory: Memory
    steps: dict[str, Step] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=lambda: {INPUT: INPUT})

    def read(self, node: Node) -> None:
        make = _READERS.get(node.op)
        if make is None:
            raise ModelError(
                f"layer {node.output!r}: inference has no operation {node.op!r}. {nearest(node.op, _READERS)}"
            )
        if unknown := [name for name in node.inputs if name not in self.names]:
            raise ModelError(f"layer {node.output!r} reads {unknown[0]!r}, which no layer before it gives.")
        if missing := [name for name in node.tensors.values() if name not in self.tensors]:
            raise ModelError(f"layer {node.output!r} needs the tensor {missing[0]!r}, which the model does not hold.")
        self.count(node)
        try:
            made = make(self, node, tuple(self.names[name] for name in node.inputs))
        except KeyError as error:
            raise ModelError(f"layer {node.output!r} ({node.op}) lacks {error}.") from None
        self.steps[made.name] = made
        self.names[node.output] = made.name

    def count(self, node: Node) -> None:
        """Take the memory of a node's constants; several nodes may name one tensor, and each gets a copy."""
        kept = 0
        for name in node.tensors.values():
            tensor = self.tensors[name]
            flat = len(tensor.shape) < 2
            left = tensor.values.size if isinstance(tensor, Survivors) else tensor.size
            kept += 8 * prod(tensor.shape) if flat else 12 * left + 4 * tensor.shape[0]
        self.memory.expect(3 * kept, f"layer {node.output!r}")  # copies on the way
        self.memory.take(kept, f"layer {node.output!r}")

    def sole(self, node: Node) -> Step | None:
        """The step before a node, if nothing else reads it: then the node may be folded into it."""
        source = node.inputs[0]
        return self.steps.get(self.names[source]) if self.reads[source] == 1 else None

    def tensor(self, node: Node, role: str, default: Floats) -> Floats:
        """A tensor that a node may have."""
        return self.needed(node, role) if role in node.tensors else default

    def needed(self, node: Node, role: str) -> Floats:
        """A copy, so that the model's one large vector need not stay."""
        found = self.tensors[node.tensors[role]]
        return found.dense() if isinstance(found, Survivors) else found.copy()


def _conv(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
    a = node.attributes
    weight = Weights.of(reader.tensors[node.tensors["weight"]])
    bias = reader.tensor(node, "bias", np.zeros(weight.shape[0], np.float32))
    stride, padding, dilation = (_pair(a[key]) for key in ("stride", "padding", "dilation"))
    return Conv(node.output, inputs, weight, bias, stride, padding, dilation, int(a["groups"]))


def _linear(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
    weight = Weights.of(reader.tensors[node.tensors["weight"]])
    bias = reader.tensor(node, "bias", np.zeros(weight.shape[0], np.float32))
    return Conv(node.output, inputs, weight, bias, flat=True)


def _batch_norm(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
    mean, variance = (reader.needed(node, role).astype(np.float64) for role in ("running_mean", "running_var"))
    spread = variance + float(node.attributes["eps"])
    if not (spread > 0).all():
        raise ModelError(f"layer {node.output!r}: variance and eps must have a positive sum. Received: {spread.min()}.")
    before = reader.sole(node)
    with np.errstate(all="ignore"):  # what is beyond float32 becomes infinite, as in training
        scale = reader.tensor(node, "weight", np.ones(mean.size, np.float32)) / np.sqrt(spread)
        shift = reader.tensor(node, "bias", np.zeros(mean.size, np.float32)) - mean * scale
        affine = scale.astype(np.float32), shift.astype(np.float32)
        if isinstance(before, Conv) and _unclamped(before):
            if before.bias.size != mean.size:
                raise ModelError(f"layer {node.output!r} takes {mean.size:,} channels. Received: {before.bias.size:,}.")
            bias = (before.bias * scale + shift).astype(np.float32)
            return replace(before, weight=before.weight.scaled(scale), bias=bias)
    if isinstance(before, (Pool, Affine)) and before.affine is None and _unclamped(before):
        return replace(before, affine=affine)
    return Affine(node.output, inputs, affine)


def _clamp(low: float, high: float) -> Callable[[_Reader, Node, tuple[str, ...]], Step]:
    def read(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
        before = reader.sole(node)
        if isinstance(before, CLAMPED) and _unclamped(before):
            return replace(before, low=low, high=high)
        return Affine(node.output, inputs, None, low, high)

    return read


def _pool(mean: bool) -> Callable[[_Reader, Node, tuple[str, ...]], Step]:
    def read(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
        a = node.attributes
        kernel, stride, padding = (_pair(a[key]) for key in ("kernel", "stride", "padding"))
        count = bool(a.get("count_padding", True))
        return Pool(node.output, inputs, mean, kernel, stride, padding, bool(a["ceil"]), count)

    return read


def _adaptive(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
    return Pool(node.output, inputs, mean=True, size=_pair(node.attributes["size"]))


def _flatten(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
    if node.attributes["start"] != 1:
        raise ModelError(
            f"layer {node.output!r} flattens from dimension {node.attributes['start']}; inference flattens whole "
            "samples only (start = 1)."
        )
    return Flatten(node.output, inputs)


def _curve(reader: _Reader, node: Node, inputs: tuple[str, ...]) -> Step:
    slope = node.attributes["slope"] if node.op == "leaky_relu" else 0.0
    return Curve(node.output, inputs, node.op, float(slope))


def _unclamped(step: Conv | Pool | Affine | Add) -> bool:
    return step.low == -inf and step.high == inf


def _pair(value: Any) -> Pair:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


_READERS: dict[str, Callable[[_Reader, Node, tuple[str, ...]], Step]] = {
    "linear": _linear,
    "conv2d": _conv,
    "batch_norm": _batch_norm,
    "relu": _clamp(0.0, inf),
    "relu6": _clamp(0.0, 6.0),
    "max_pool2d": _pool(mean=False),
    "avg_pool2d": _pool(mean=True),
    "adaptive_avg_pool2d": _adaptive,
    "flatten": _flatten,
    "add": lambda reader, node, inputs: Add(node.output, inputs),
    "softmax": lambda reader, node, inputs: Softmax(node.output, inputs, int(node.attributes["axis"])),
    **dict.fromkeys(CURVES, _curve),
}
