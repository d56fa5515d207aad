"""What a network computes in training, as layers in order: what back ends with kernels of their own read.

In: a module and the shape of a sample. Out: a `Network`, or `NotPlanned` with the reason. A ReLU becomes a part of the
layer before it where nothing else reads what lies between; a sum becomes a part of a norm before it (`with_sums`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
from torch import nn

from ..errors import ModelError
from ..graph import INPUT, Node
from ..keyed import KeyedDropout
from ..model import Layout
from ..networks.modules import changed_gradient
from ..networks.tracing import trace
from ..ops import shapes_of
from ..ops.adaptive_avg_pool2d import means

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
    pooled: bool = False  # by 2 × 2, after the ReLU; `native/conv` merges pools


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
    pooled: bool = False


@dataclass(frozen=True)
class GroupNorm:
    """Group norm; a second input is added to its outputs, before any ReLU."""

    inputs: tuple[str, ...]
    output: str
    weight: str | None
    bias: str | None
    groups: int
    eps: float
    relu: bool = False


@dataclass(frozen=True)
class Pool:
    """The largest value or the mean of windows, each given by its first row and column and those after its last."""

    inputs: tuple[str, ...]
    output: str
    mean: bool
    rows: tuple[Pair, ...]
    columns: tuple[Pair, ...]
    factors: tuple[float, ...] = ()  # of the mean, for each window
    kernel: Pair = (0, 0)  # with stride and padding: what the windows were made from; zeros for adaptive pools
    stride: Pair = (0, 0)
    padding: Pair = (0, 0)

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


Layer: TypeAlias = Convolution | Norm | GroupNorm | Pool | Add | Relu | Dropout | Flatten


@dataclass(frozen=True)
class Network:
    """The layers of a network, in the order in which they run."""

    layers: tuple[Layer, ...]
    shapes: dict[str, Shape]  # of every value
    output: str


def read_network(module: nn.Module, layout: Layout, sample: Sequence[int]) -> Network:
    """The layers of a network; every tensor of the model belongs to one of them."""
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
    if all(node.op == "flatten" for node in graph if INPUT in node.inputs):
        flat[INPUT] = (prod(sample),)  # nothing reads the sample's own shape
    shapes = {name: _as_image(name, shape) for name, shape in flat.items()}
    layers = [_layer(node, module, flat, tensors) for node in graph]
    output = graph[-1].output
    if len(flat[output]) != 1:
        raise NotPlanned(f"it gives {flat[output]} per sample instead of one logit per class")
    _check_tensors(layers, layout)
    return Network(tuple(_with_relus(layers, output)), shapes, output)


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
            layer = module.get_submodule(a["module"]) if "module" in a else None
            if not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                raise NotPlanned(f"{node.output!r} is a batch norm outside of a layer")
            if layer.momentum is None:
                raise NotPlanned(f"batch norm {a['module']!r} has a momentum of None")
            held = node.tensors.get("weight"), node.tensors.get("bias")
            running = node.tensors["running_mean"], node.tensors["running_var"]
            return Norm(*names, *held, *running, float(a["eps"]), float(layer.momentum))
        case "group_norm":
            return GroupNorm(*names, node.tensors.get("weight"), node.tensors.get("bias"), a["groups"], float(a["eps"]))
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
    kernel, stride, padding = ((a[name][0], a[name][1]) for name in ("kernel", "stride", "padding"))
    bounds = [
        [(max(0, k * step - pad), min(side, k * step - pad + size)) for k in range(out)]
        for side, out, size, step, pad in axes
    ]
    if node.op == "max_pool2d":
        return Pool(*names, False, tuple(bounds[0]), tuple(bounds[1]), (), kernel, stride, padding)
    counts = [
        [
            min(side + pad, k * step - pad + size) - (k * step - pad) if a["count_padding"] else last - first
            for k, (first, last) in enumerate(found)
        ]
        for (side, _, size, step, pad), found in zip(axes, bounds, strict=True)
    ]
    factors = (1.0 / (high * wide) for high in counts[0] for wide in counts[1])
    return Pool(*names, True, tuple(bounds[0]), tuple(bounds[1]), tuple(factors), kernel, stride, padding)


def _check_tensors(layers: Sequence[Layer], layout: Layout) -> None:
    """Every tensor of the model belongs to exactly one layer."""
    used: Counter[str] = Counter()
    for layer in layers:
        if isinstance(layer, Convolution):
            used.update(name for name in (layer.weight, layer.bias) if name)
        if isinstance(layer, Norm):
            held = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
            used.update(name for name in held if name)
        if isinstance(layer, GroupNorm):
            used.update(name for name in (layer.weight, layer.bias) if name)
    for spec in layout:
        if used[spec.name] != 1:
            raise NotPlanned(f"the tensor {spec.name!r} belongs to {used[spec.name]} layers that it has kernels for")


def readers_of(layers: Sequence[Layer], output: str) -> Counter[str]:
    """How often each value is read; the network's output once more."""
    return Counter([output, *(name for layer in layers for name in layer.inputs)])


def _with_relus(layers: Sequence[Layer], output: str) -> list[Layer]:
    """ReLUs as parts of the layers before them."""
    readers, found = readers_of(layers, output), list[Layer]()
    makers: dict[str, int] = {}  # value → its layer in `found`
    for layer in layers:
        source = layer.inputs[0]
        k = makers.get(source) if readers[source] == 1 else None
        before = found[k] if k is not None else None
        if isinstance(layer, Relu) and isinstance(before, Convolution | Norm | GroupNorm | Add) and not before.relu:
            assert k is not None
            found[k] = replace(before, output=layer.output, relu=True)
            makers[layer.output] = k
        else:
            found.append(layer)
            makers[layer.output] = len(found) - 1
    return found


def with_sums(layers: Sequence[Layer], output: str) -> list[Layer]:
    """Sums as parts of a norm whose outputs are a summand, and nothing else."""
    readers = readers_of(layers, output)
    norms = {
        layer.output: layer
        for layer in layers
        if isinstance(layer, Norm | GroupNorm) and readers[layer.output] == 1 and not layer.relu
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
