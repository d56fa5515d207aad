"""What a network computes in training, as layers in order.

In: a module and the shape of a sample. Out: a `Plan`, or `NotPlanned` with the reason. A ReLU becomes a part of the
layer before it, and so does a pool of 2 × 2 after the ReLU of a batch norm or of a convolution that keeps the image's
size, where nothing else reads what lies between. A sum becomes a part of a batch norm before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from torch import nn

from ....errors import ModelError
from ....graph import INPUT, Node
from ....keyed import KeyedDropout
from ....model import Layout
from ....networks.modules import changed_gradient
from ....networks.tracing import trace
from ....ops import shapes_of
from ....ops.adaptive_avg_pool2d import means
from .rows import POOLED_SIZES

Shape = tuple[int, int, int]  # channels, rows, columns; a flat value has one row and one column
Pair = tuple[int, int]


class NotPlanned(ModelError):
    """The network has something that the kernels do not."""


@dataclass(frozen=True)
class Convolution:
    """Also a linear layer: a convolution of one pixel."""

    inputs: tuple[str, ...]
    output: str
    weight: str
    bias: str | None
    kernel: tuple[int, int, int, int]  # outputs, inputs per group, rows, columns
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    relu: bool = False
    pooled: bool = False  # by 2 × 2, after the ReLU

    @property
    def keeps_size(self) -> bool:
        """Whether a square window, moved by one pixel, gives an image as large as the input."""
        size = self.kernel[2]
        centred = self.kernel[2:] == (size, size) and self.padding == ((size - 1) // 2,) * 2
        return centred and size in POOLED_SIZES and self.stride == self.dilation == (1, 1)


@dataclass(frozen=True)
class Norm:
    """Batch norm with running statistics; a second input is added to its outputs, before any ReLU."""

    inputs: tuple[str, ...]
    output: str
    weight: str | None
    bias: str | None
    running_mean: str
    running_var: str
    eps: float
    momentum: float
    relu: bool = False
    pooled: bool = False  # by 2 × 2, after the ReLU


@dataclass(frozen=True)
class Pool:
    """The largest value or the mean of windows, each given by its first row and column and those after its last."""

    inputs: tuple[str, ...]
    output: str
    mean: bool
    rows: tuple[Pair, ...]
    columns: tuple[Pair, ...]
    factors: tuple[float, ...] = ()  # of the mean, for each window

    @property
    def window(self) -> Pair:
        """The largest window's rows and columns."""
        high, wide = (max(last - first for first, last in bounds) for bounds in (self.rows, self.columns))
        return high, wide


@dataclass(frozen=True)
class Add:
    """The sum of two values."""

    inputs: tuple[str, ...]
    output: str
    relu: bool = False


@dataclass(frozen=True)
class Relu:
    """A ReLU that no layer before it can take in."""

    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Dropout:
    """A keyed dropout."""

    inputs: tuple[str, ...]
    output: str
    module: str


@dataclass(frozen=True)
class Flatten:
    """All features of a sample as channels of one pixel."""

    inputs: tuple[str, ...]
    output: str


Layer: TypeAlias = Convolution | Norm | Pool | Add | Relu | Dropout | Flatten


@dataclass(frozen=True)
class Plan:
    """The layers of a network, in the order in which they run."""

    layers: tuple[Layer, ...]
    shapes: dict[str, Shape]  # of every value
    output: str

    @property
    def with_gradient(self) -> set[str]:
        """The values whose gradient is needed."""
        found: set[str] = set()
        for layer in self.layers:
            if isinstance(layer, Convolution | Norm) or found & set(layer.inputs):
                found.add(layer.output)
        return found

    @property
    def convolutions(self) -> list[Convolution]:
        """Convolutions and linear layers."""
        return [layer for layer in self.layers if isinstance(layer, Convolution)]


def read_plan(module: nn.Module, layout: Layout, sample: Sequence[int]) -> Plan:
    """The plan of a network."""
    if why := changed_gradient(module):
        raise NotPlanned(why)
    if frozen := [name for name, p in module.named_parameters() if not p.requires_grad]:
        raise NotPlanned(f"the parameter {frozen[0]!r} is frozen")
    try:
        graph = trace(module, training=True)
        tensors = {name: tuple(tensor.shape) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        flat = shapes_of(graph, tensors, sample)
    except NotPlanned:
        raise
    except ModelError as error:
        raise NotPlanned(str(error)) from error
    shapes = {name: _as_image(name, shape) for name, shape in flat.items()}
    layers = [_layer(node, module, flat, tensors) for node in graph]
    output = graph[-1].output
    if len(flat[output]) != 1:
        raise NotPlanned(f"it gives {flat[output]} per sample instead of one logit per class")
    _check_tensors(layers, layout)
    if not any(isinstance(layer, Convolution) and max(layer.kernel[2:]) > 1 for layer in layers):
        raise NotPlanned("it has no convolution")
    return Plan(tuple(_with_sums(_fused(layers, shapes, output), output)), shapes, output)


def _as_image(name: str, shape: Sequence[int]) -> Shape:
    if len(shape) == 1:
        return shape[0], 1, 1
    if len(shape) != 3:
        raise NotPlanned(f"the value {name!r} has the shape {tuple(shape)}")
    return shape[0], shape[1], shape[2]


def _layer(
    node: Node, module: nn.Module, shapes: dict[str, tuple[int, ...]], tensors: dict[str, tuple[int, ...]]
) -> Layer:
    a, names, sample = node.attributes, (node.inputs, node.output), shapes[node.inputs[0]]
    match node.op:
        case "conv2d":
            kernel = tensors[node.tensors["weight"]]
            stride, padding, dilation = ((a[name][0], a[name][1]) for name in ("stride", "padding", "dilation"))
            outputs, inputs, rows, columns = kernel
            weight, bias = node.tensors["weight"], node.tensors.get("bias")
            size = outputs, inputs, rows, columns
            return Convolution(*names, weight, bias, size, stride, padding, dilation, a["groups"])
        case "linear" if len(sample) == 1:
            outputs, inputs = tensors[node.tensors["weight"]]
            return Convolution(*names, node.tensors["weight"], node.tensors.get("bias"), (outputs, inputs, 1, 1))
        case "batch_norm":
            layer = module.get_submodule(a["module"])
            if not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) or layer.momentum is None:
                raise NotPlanned(f"batch norm {a['module']!r} has a momentum of None")
            held = node.tensors.get("weight"), node.tensors.get("bias")
            running = node.tensors["running_mean"], node.tensors["running_var"]
            return Norm(*names, *held, *running, float(a["eps"]), float(layer.momentum))
        case "max_pool2d" | "avg_pool2d" | "adaptive_avg_pool2d":
            return _pool(node, (sample[1], sample[2]), shapes[node.output][1:])
        case "add":
            if shapes[node.inputs[0]] != shapes[node.inputs[1]]:
                raise NotPlanned(f"{node.output!r} adds values of different shapes")
            return Add(*names)
        case "relu":
            return Relu(*names)
        case "dropout":
            child = module.get_submodule(a["module"]) if "module" in a else None
            if not isinstance(child, KeyedDropout):
                raise NotPlanned(f"{node.output!r} draws from torch's own random generator")
            return Dropout(*names, a["module"])
        case "flatten" if a["start"] == 1:
            return Flatten(*names)
    raise NotPlanned(f"it has no kernel for {node.op} at {node.output!r}")


def _pool(node: Node, sides: Sequence[int], outputs: Sequence[int]) -> Pool:
    a, names = node.attributes, (node.inputs, node.output)
    if node.op == "adaptive_avg_pool2d":
        both = [means(side, out) for side, out in zip(sides, outputs, strict=True)]
        rows, columns = ([(int(np.argmax(w > 0)), int(w.size - np.argmax(w[::-1] > 0))) for w in one] for one in both)
        factors = (1.0 / ((b - t) * (r - left)) for t, b in rows for left, r in columns)
        return Pool(*names, True, tuple(rows), tuple(columns), tuple(factors))
    axes = list(zip(sides, outputs, a["kernel"], a["stride"], a["padding"], strict=True))
    bounds = [
        [(max(0, k * stride - pad), min(side, k * stride - pad + size)) for k in range(out)]
        for side, out, size, stride, pad in axes
    ]
    if node.op == "max_pool2d":
        return Pool(*names, False, tuple(bounds[0]), tuple(bounds[1]))
    counts = [
        [
            min(side + pad, k * stride - pad + size) - (k * stride - pad) if a["count_padding"] else last - first
            for k, (first, last) in enumerate(found)
        ]
        for (side, _, size, stride, pad), found in zip(axes, bounds, strict=True)
    ]
    factors = (1.0 / (high * wide) for high in counts[0] for wide in counts[1])
    return Pool(*names, True, tuple(bounds[0]), tuple(bounds[1]), tuple(factors))


def _check_tensors(layers: Sequence[Layer], layout: Layout) -> None:
    """Every tensor of the model belongs to exactly one layer."""
    used: Counter[str] = Counter()
    for layer in layers:
        if isinstance(layer, Convolution):
            used.update(name for name in (layer.weight, layer.bias) if name)
        if isinstance(layer, Norm):
            held = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
            used.update(name for name in held if name)
    for spec in layout:
        if used[spec.name] != 1:
            raise NotPlanned(f"the tensor {spec.name!r} belongs to {used[spec.name]} layers that it has kernels for")


def _fused(layers: Sequence[Layer], shapes: dict[str, Shape], output: str) -> list[Layer]:
    """ReLUs, and then pools of 2 × 2, as parts of the layers before them."""
    readers = Counter([output, *(name for layer in layers for name in layer.inputs)])
    found: list[Layer] = []
    makers: dict[str, int] = {}  # value → its layer in `found`
    for layer in layers:
        source = layer.inputs[0]
        k = makers.get(source) if readers[source] == 1 and source != INPUT else None
        before = found[k] if k is not None else None
        merged: Layer | None = None
        if isinstance(layer, Relu) and isinstance(before, Convolution | Norm | Add) and not before.relu:
            merged = replace(before, output=layer.output, relu=True)
        elif isinstance(layer, Pool) and isinstance(before, Convolution | Norm) and before.relu and not before.pooled:
            even = not (shapes[source][1] % 2 or shapes[source][2] % 2)
            squares = not layer.mean and squares_of(layer, shapes[source])
            fits = before.keeps_size if isinstance(before, Convolution) else readers[before.inputs[0]] == 1
            if even and squares and fits:
                merged = replace(before, output=layer.output, pooled=True)
        if merged is not None and k is not None:
            found[k] = merged
            makers[layer.output] = k
        else:
            found.append(layer)
            makers[layer.output] = len(found) - 1
    return found


def _with_sums(layers: Sequence[Layer], output: str) -> list[Layer]:
    """Sums as parts of a batch norm whose outputs are a summand, and nothing else."""
    readers = Counter([output, *(name for layer in layers for name in layer.inputs)])
    norms = {
        layer.output: layer
        for layer in layers
        if isinstance(layer, Norm) and readers[layer.output] == 1 and not layer.relu
    }
    found: list[Layer] = []
    for layer in layers:
        summands = [name for name in layer.inputs if name in norms] if isinstance(layer, Add) else []
        if isinstance(layer, Add) and summands:
            norm = norms[summands[0]]
            (other,) = {*layer.inputs} - {norm.output}
            found.remove(norm)
            layer = replace(norm, inputs=(*norm.inputs, other), output=layer.output, relu=layer.relu)
        found.append(layer)
    return found


def squares_of(pool: Pool, shape: Shape) -> bool:
    """Whether the windows of a pool are the squares of 2 × 2 that an image consists of."""
    sides = (shape[1], shape[2])
    return all(
        bounds == tuple((first, first + 2) for first in range(0, side, 2))
        for bounds, side in zip((pool.rows, pool.columns), sides, strict=True)
    )
