"""Random layers whose steps depend on the shape of a sample: views, products of values, norms, constants."""

from __future__ import annotations

from math import prod
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsparsify.errors import ModelError
from fedsparsify.graph import Node
from fedsparsify.ops import OPERATIONS, roles
from fedsparsify.ops.constant import attributes_of

if TYPE_CHECKING:
    from random_graphs import Graph

MOST_CONSTANT = 1 << 14
VIEWS = ("permute", "reshape", "reshape", "slice", "pad", "cat")
OTHERS = ("mul", "mul", "add", "matmul", "layer_norm", "group_norm", "mean", "softmax", "prelu", "elu", "clamp")
SHAPED = (*VIEWS, *OTHERS, "hardsigmoid", "linear", "conv1d", "conv_transpose2d", "take")


def shaped_layer(rng: Random, graph: Graph, name: str, source: str, reach: int) -> None:
    """One more layer of these; nothing where the draw does not fit."""
    shape, op = graph.shapes[source], rng.choice(SHAPED)
    inputs: tuple[str, ...] = (source,)
    attributes: dict[str, Any] = {}
    tensors: dict[str, np.ndarray] = {}
    normal = np.random.default_rng(rng.getrandbits(32)).standard_normal
    axis, far = rng.randint(1, len(shape)), rng.random() < 0.1
    match op:
        case "permute":
            attributes["order"] = rng.sample(range(1, len(shape) + 1), len(shape))
        case "reshape":
            start, end = sorted((rng.randint(0, len(shape)), rng.randint(0, len(shape))))
            sizes = _divided(rng, prod(shape[start:end]))
            attributes = {"start": start + 1, "end": end + 1, "sizes": sizes}
        case "slice":
            start = rng.randrange(shape[axis - 1])
            stop = rng.randint(start + 1, shape[axis - 1])
            step = rng.choice((1, 1, 2, 3, (1 << 31) - 1))
            attributes = {"axis": axis, "start": start, "stop": stop, "step": step}
        case "pad":
            most = min(reach, (1 << 31) - 1) if far else 3
            ends = [[rng.choice((0, rng.randint(0, most))) for _ in shape] for _ in range(2)]
            attributes = {"before": ends[0], "after": ends[1], "value": rng.choice((0.0, 0.0, -2.5))}
        case "cat":
            like = [name for name in graph.shapes if _differs(graph.shapes[name], shape) <= {axis - 1}]
            inputs = (source, *rng.choices(like, k=rng.randint(1, 3)))
            attributes["axis"] = axis
        case "mul" | "add":
            other = _partner(rng, graph, name, shape, [rng.choice((1, side)) for side in shape])
            inputs = (source, other) if rng.random() < 0.7 else (other, source)
        case "matmul":
            if len(shape) < 2:
                return
            sides = [*(rng.choice((1, side)) for side in shape[:-2]), shape[-1], rng.randint(1, 24)]
            inputs = (source, _partner(rng, graph, name, None, sides))
        case "layer_norm":
            attributes = {"axes": axis, "eps": rng.choice((1e-5, 0.1))}
            tensors = _scaling(rng, shape[-axis:])
        case "group_norm":
            groups = rng.choice([g for g in (1, 2, 3, shape[0]) if shape[0] % g == 0])
            if groups == prod(shape):
                return  # which PyTorch refuses
            attributes = {"groups": groups, "eps": rng.choice((1e-5, 0.1))}
            tensors = _scaling(rng, shape[:1])
        case "mean":
            attributes["axes"] = sorted(rng.sample(range(1, len(shape) + 1), rng.randint(1, len(shape))))
        case "softmax":
            attributes["axis"] = rng.choice((axis, axis - len(shape) - 1))
        case "prelu":
            tensors["weight"] = normal(rng.choice((1, shape[0])), np.float32)
        case "elu":
            attributes["slope"] = rng.choice((1.0, 0.3))
        case "clamp":
            attributes = {"low": rng.choice((None, -1.0)), "high": rng.choice((None, 0.5))}
        case "linear":
            tensors["weight"] = normal((rng.randint(1, 40), shape[-1]), np.float32) * shape[-1] ** -0.5
        case "conv1d":
            if len(shape) != 2:
                return
            groups = rng.choice((1, shape[0]))
            kernel = rng.randint(1, 5)
            tensors["weight"] = normal((groups * rng.randint(1, 6), shape[0] // groups, kernel), np.float32)
            tensors["weight"] *= (shape[0] // groups * kernel) ** -0.5
            most = min(reach, (1 << 31) - 1) if far else 3
            sizes = {"stride": rng.randint(1, most), "padding": rng.randint(0, most), "dilation": rng.randint(1, most)}
            attributes = {**sizes, "groups": groups}
        case "conv_transpose2d":
            if len(shape) != 3:
                return
            groups = rng.choice((1, shape[0]))
            kernel = [rng.randint(1, 5) for _ in range(2)]
            tensors["weight"] = normal((shape[0], rng.randint(1, 6), *kernel), np.float32)
            tensors["weight"] *= (shape[0] // groups * prod(kernel)) ** -0.5
            if rng.random() < 0.5:
                tensors["bias"] = normal(groups * tensors["weight"].shape[1], np.float32)
            stride = [rng.randint(1, min(reach, (1 << 31) - 1) if far else 3) for _ in range(2)]
            attributes = {"stride": stride, "padding": [rng.randint(0, 3) for _ in range(2)], "groups": groups}
            attributes["output_padding"] = [rng.randrange(min(step, 4)) for step in stride]
        case "take":
            inputs = (_partner(rng, graph, name, None, list(shape)),)
            attributes = {"axis": axis, "numbers": [rng.randrange(shape[axis - 1]) for _ in range(rng.randint(1, 9))]}
    if "" in inputs or sum(t.size for t in tensors.values()) > 1 << 21:
        return
    node = Node(op, name, inputs, {role: f"{name}.{role}" for role in tensors}, attributes)
    graph.tensors |= {f"{name}.{role}": np.asarray(value, np.float32) for role, value in tensors.items()}
    given = [graph.shapes[each] for each in inputs]
    held = roles(node, {key: value.shape for key, value in graph.tensors.items()})
    try:
        made = OPERATIONS[op].shape(node, given, held)
    except ModelError:
        return
    assert made is not None
    if min(made, default=1) < 1:
        return
    graph.nodes.append(node)
    graph.shapes[name] = made
    terms = {"matmul": (-1, 1), "linear": (-1, 1), "conv1d": (0, 5), "conv_transpose2d": (0, 25)}  # side, times
    side, times = terms.get(op, (0, 0))
    depth = (times * given[0][side] or 4) if given[0] else 1
    graph.work += prod(made) * depth


def _divided(rng: Random, size: int) -> list[int]:
    """Some factors of a number, in any order, and ones among them."""
    sizes = []
    for factor in (2, 3, 2, 7, 2, 5):
        if size % factor == 0 and rng.random() < 0.5:
            sizes.append(factor)
            size //= factor
    sizes += [size, *[1] * (rng.random() < 0.2)]
    rng.shuffle(sizes)
    return sizes


def _differs(one: tuple[int, ...], other: tuple[int, ...]) -> set[int]:
    """The dimensions in which two shapes differ."""
    if len(one) != len(other):
        return {-1}
    return {k for k, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}


def _scaling(rng: Random, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Weight and bias of a norm, or one of them, or none."""
    if prod(shape) > 1 << 20:
        return {}
    normal = np.random.default_rng(rng.getrandbits(32)).standard_normal
    return {role: normal(shape, np.float32) for role in ("weight", "bias") if rng.random() < 0.6}


def _partner(rng: Random, graph: Graph, name: str, shape: tuple[int, ...] | None, sides: list[int]) -> str:
    """A value that can be read beside another: one that is there, or a constant of some sides; else no name."""
    fits = [key for key, found in graph.shapes.items() if _fits(found, shape, sides)]
    if fits and rng.random() < 0.7:
        return rng.choice(fits)
    if prod(sides) > MOST_CONSTANT:
        return ""
    values = np.random.default_rng(rng.getrandbits(32)).standard_normal(sides).astype(np.float32)
    made = f"{name}.given"
    if rng.random() < 0.5:
        graph.nodes.append(Node("constant", made, (), {}, attributes_of(values)))
    else:
        graph.nodes.append(Node("parameter", made, (), {"value": f"{made}.value"}, {}))
        graph.tensors[f"{made}.value"] = values
    graph.shapes[made] = tuple(sides)
    return made


def _fits(found: tuple[int, ...], shape: tuple[int, ...] | None, sides: list[int]) -> bool:
    if shape is None:  # a matrix with so many rows
        return len(found) == len(sides) and found[:-1] == tuple(sides[:-1])
    return len(found) == len(shape) and all(1 in (a, b) or a == b for a, b in zip(found, shape, strict=True))
