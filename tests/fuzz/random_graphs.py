"""Random graphs that are well-formed, from tiny to the bounds of the format, and what PyTorch makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np
import torch
from shaped_layers import shaped_layer
from torch.nn import functional as F

from fedsparsify.graph import INPUT, Node
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.ops import OPERATIONS

CURVES = ("relu", "relu6", "sigmoid", "tanh", "silu", "hardswish", "gelu")
torch.set_num_threads(1)
MOST_WEIGHTS = 1 << 21
MOST_WORK = 3 * 10**8  # multiplications that PyTorch takes for the batch
MOST_VALUES = 2 * 10**7  # of all layers together


@dataclass
class Graph:
    """A network and the shape of a sample; `shapes` of the values, of which huge ones are never made."""

    sample: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    work: int = 0

    @property
    def model(self) -> SparseModel:
        """The tensors; what batch norms remember are statistics."""
        names = sorted(self.tensors, key=lambda name: ".running" in name)
        specs = [TensorSpec(name, self.tensors[name].shape) for name in names]
        trained = [spec for spec in specs if ".running" not in spec.name]
        layout = Layout(tuple(trained), tuple(specs[len(trained) :]))
        weights = np.concatenate([np.zeros(0, np.float32), *(self.tensors[name].ravel() for name in names)])
        return SparseModel(layout, weights, weights[: layout.trainable] != 0)


def size(rng: Random, most: int) -> int:
    """A whole number from 1 on, of any magnitude alike."""
    return min(most, int(2 ** rng.uniform(0, most.bit_length())))


def draw(rng: Random) -> Graph:
    """Some layers. Three in four have moderate sizes, the others any; two in three have layers that need shapes."""
    reach, shaped = rng.choice((6, 24, 24, 1 << 31)), rng.choice((0.0, 0.4, 0.8))
    if rng.random() < 0.2:
        graph = Graph((size(rng, 1 << 12),))
    else:
        sides = (size(rng, 48), size(rng, 48)) if rng.random() < 0.8 else (1, size(rng, 1 << 15))
        graph = Graph((size(rng, 64 if rng.random() < 0.9 else 2048), *rng.sample(sides, 2)))
    graph.shapes[INPUT] = graph.sample
    for k in range(rng.randint(1, 7)):
        source = rng.choice(list(graph.shapes)) if rng.random() < 0.25 else list(graph.shapes)[-1]
        if len(graph.shapes[source]) not in (1, 3) or rng.random() < shaped:
            shaped_layer(rng, graph, f"n{k}", source, reach)
        else:
            _layer(rng, graph, f"n{k}", source, reach)
    return graph


def _layer(rng: Random, graph: Graph, name: str, source: str, reach: int) -> None:
    """One more layer that reads a value; nothing where the draw does not fit."""
    shape = graph.shapes[source]
    images = ("conv2d", "conv2d", "conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "flatten")
    kinds = images if len(shape) == 3 else ("linear",)
    op = rng.choice((*kinds, *kinds, "batch_norm", "leaky_relu", "softmax", "add", rng.choice(CURVES)))
    attributes: dict[str, Any] = {}
    tensors: dict[str, np.ndarray] = {}
    inputs, made = (source,), shape
    normal = np.random.default_rng(rng.getrandbits(32)).standard_normal
    match op:
        case "conv2d":
            kernel = [min(size(rng, 7 if rng.random() < 0.9 else 64), reach) for _ in range(2)]
            padding = [0 if rng.random() < 0.3 else size(rng, min(reach, 1 << 31) - 1) for _ in range(2)]
            if rng.random() < 0.4:
                kernel, padding = [3, 3], [1, 1]
            groups = rng.choice([g for g in (1, 1, 2, shape[0]) if shape[0] % g == 0])
            outputs = groups * size(rng, 64)
            stride = [1, 1] if rng.random() < 0.5 else [size(rng, min(reach, (1 << 31) - 1)) for _ in range(2)]
            dilation = [1, 1] if rng.random() < 0.7 else [size(rng, min(reach, (1 << 31) - 1)) for _ in range(2)]
            if outputs * shape[0] // groups * prod(kernel) > MOST_WEIGHTS:
                return
            attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            tensors["weight"] = normal((outputs, shape[0] // groups, *kernel), np.float32)
            if rng.random() < 0.5:
                tensors["bias"] = normal(outputs, np.float32)
            spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
            made = (outputs, *_windows(shape, spans, stride, padding, False))
            graph.work += prod(made) * shape[0] // groups * prod(kernel)
        case "linear":
            outputs = size(rng, 512)
            if outputs * shape[0] > MOST_WEIGHTS:
                return
            tensors["weight"] = normal((outputs, shape[0]), np.float32)
            if rng.random() < 0.5:
                tensors["bias"] = normal(outputs, np.float32)
            made = (outputs,)
            graph.work += outputs * shape[0]
        case "max_pool2d" | "avg_pool2d":
            kernel = [size(rng, min(reach, 1 << 16)) for _ in range(2)]
            attributes = {"kernel": kernel, "padding": [rng.randint(0, side // 2) for side in kernel]}
            attributes["stride"] = [size(rng, min(reach, (1 << 31) - 1)) for _ in range(2)]
            if rng.random() < 0.4:
                attributes = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}
            attributes["ceil"] = rng.random() < 0.3
            if op == "avg_pool2d":
                attributes["count_padding"] = rng.random() < 0.5
            made = (shape[0], *_windows(shape, *(attributes[k] for k in ("kernel", "stride", "padding", "ceil"))))
            graph.work += prod(made) * prod(attributes["kernel"])
        case "adaptive_avg_pool2d":
            attributes["size"] = [size(rng, reach if rng.random() < 0.3 else 16) % (1 << 31) or 1 for _ in range(2)]
            made = (shape[0], *attributes["size"])
            graph.work += prod(made) * 4
        case "flatten":
            attributes["start"], made = 1, (prod(shape),)
        case "batch_norm":
            if shape[0] > MOST_WEIGHTS:
                return
            for role in ("weight", "bias", "running_mean"):
                tensors[role] = normal(shape[0], np.float32)
            tensors["running_var"] = 0.5 + np.abs(normal(shape[0], np.float32))
            attributes["eps"] = rng.choice((1e-5, 0, 0.1))
        case "leaky_relu":
            attributes["slope"] = rng.choice((0.01, -0.3, 0))
        case "softmax":
            attributes["axis"] = 1
        case "add":
            alike = [other for other, sides in graph.shapes.items() if sides == shape]
            inputs = (source, rng.choice(alike))
    if min(made) < 1:
        return
    if "weight" in tensors and op != "batch_norm":
        weight = tensors["weight"]
        weight *= (weight.size / len(weight)) ** -0.5
        weight[np.abs(weight) < np.quantile(np.abs(weight), rng.choice((0, 0.5, 0.9, 0.99)))] = 0
    graph.nodes.append(Node(op, name, inputs, {role: f"{name}.{role}" for role in tensors}, attributes))
    graph.tensors |= {f"{name}.{role}": np.asarray(value, np.float32) for role, value in tensors.items()}
    graph.shapes[name] = made


def _windows(shape: tuple[int, ...], spans: Any, strides: Any, paddings: Any, ceil: bool) -> list[int]:
    """How many windows fit along each side; 0 where none does."""
    made = []
    for side, span, stride, padding in zip(shape[1:], spans, strides, paddings, strict=True):
        room = side + 2 * padding - span
        count = (room + (stride - 1 if ceil else 0)) // stride + 1 if room >= 0 else 0
        made.append(count - (ceil and (count - 1) * stride >= side + padding))
    return made


def quick(graph: Graph, images: int) -> bool:
    """Whether PyTorch can run it in a moment."""
    return images * graph.work < MOST_WORK and images * sum(map(prod, graph.shapes.values())) < MOST_VALUES


def expected(graph: Graph, batch: np.ndarray) -> np.ndarray:
    """What PyTorch computes, in float64."""
    values = {INPUT: torch.from_numpy(batch.astype(np.float64))}
    curves = {"relu": F.relu, "relu6": F.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": F.silu}
    curves |= {"hardswish": F.hardswish, "gelu": F.gelu, "flatten": lambda x: torch.flatten(x, 1)}
    for node in graph.nodes:
        a, given = node.attributes, [values[name] for name in node.inputs]
        x = given[0] if given else values[INPUT]
        t = {role: torch.from_numpy(graph.tensors[name].astype(np.float64)) for role, name in node.tensors.items()}
        match node.op:
            case "conv2d":
                rest = a["stride"], a["padding"], a["dilation"], a["groups"]
                y = F.conv2d(x, t["weight"], t.get("bias"), *rest)
            case "linear":
                y = F.linear(x, t["weight"], t.get("bias"))
            case "batch_norm":
                y = F.batch_norm(x, t["running_mean"], t["running_var"], t["weight"], t["bias"], eps=a["eps"])
            case "max_pool2d":
                y = F.max_pool2d(x, a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil"])
            case "avg_pool2d":
                y = F.avg_pool2d(x, a["kernel"], a["stride"], a["padding"], a["ceil"], a["count_padding"])
            case "adaptive_avg_pool2d":
                y = F.adaptive_avg_pool2d(x, a["size"])
            case "leaky_relu":
                y = F.leaky_relu(x, a["slope"])
            case "softmax":
                y = torch.softmax(x, a["axis"])
            case op if op in curves:
                y = curves[op](x)
            case _:
                y = OPERATIONS[node.op].torch(F, given, t, a).double()
        values[node.output] = y
    made = values[graph.nodes[-1].output]
    return made.expand(len(batch), *made.shape[1:]).numpy()
