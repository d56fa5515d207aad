"""A graph read back from a file: every node is checked before anything runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import WireError
from ..graph import INPUT, Node
from ..model import Layout

MAX_NODES = 1 << 12
MAX_NAME = 1024  # characters
MAX_FLOAT = 3.4028234663852886e38  # the largest float32


def _counts(least: int) -> Callable[[Any], bool]:
    """Whether a value is [h, w], both at least `least`."""
    return lambda value: (
        isinstance(value, list | tuple) and len(value) == 2 and all(_whole(item, least) for item in value)
    )


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_FLOAT


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


@dataclass(frozen=True)
class Rule:
    """What a node of one kind must have: inputs, tensors by role and rank, and attributes."""

    inputs: int = 1
    needs: dict[str, int] = field(default_factory=dict)
    may: dict[str, int] = field(default_factory=dict)
    attributes: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)


_POOL = {"kernel": _counts(1), "stride": _counts(1), "padding": _counts(0), "ceil": _truth}
RULES: dict[str, Rule] = {
    "linear": Rule(needs={"weight": 2}, may={"bias": 1}),
    "conv2d": Rule(
        needs={"weight": 4},
        may={"bias": 1},
        attributes={
            "stride": _counts(1),
            "padding": _counts(0),
            "dilation": _counts(1),
            "groups": lambda value: _whole(value, 1),
        },
    ),
    "batch_norm": Rule(
        needs={"running_mean": 1, "running_var": 1},
        may={"weight": 1, "bias": 1},
        attributes={"eps": lambda value: _number(value) and value >= 0},
    ),
    **{op: Rule() for op in ("relu", "relu6", "sigmoid", "tanh", "silu", "hardswish", "gelu")},
    "leaky_relu": Rule(attributes={"slope": _number}),
    "max_pool2d": Rule(attributes=_POOL),
    "avg_pool2d": Rule(attributes=_POOL | {"count_padding": _truth}),
    "adaptive_avg_pool2d": Rule(attributes={"size": _counts(1)}),
    "flatten": Rule(attributes={"start": lambda value: _whole(value, 1)}),
    "add": Rule(inputs=2),
    "softmax": Rule(attributes={"axis": lambda value: _whole(value, -32)}),
}


class Value(NamedTuple):
    """What is known of a value before its samples are: features or channels, and whether samples are flat rows."""

    channels: int | None = None
    flat: bool | None = None


def parse_graph(nodes: Any, layout: Layout) -> tuple[Node, ...]:
    """The nodes that a header lists; each reads what came before it and names tensors of the layout."""
    if not isinstance(nodes, list) or not nodes:
        raise WireError(f"a graph must be a list of nodes. Received: {type(nodes).__name__}.")
    if len(nodes) > MAX_NODES:
        raise WireError(f"a graph has at most {MAX_NODES:,} nodes. Received: {len(nodes):,}.")
    shapes = {spec.name: spec.shape for spec in layout}
    values = {INPUT: Value()}
    parsed = []
    for place, value in enumerate(nodes):
        try:
            node = _node(value)
            _check(node, values, shapes)
            values[node.output] = _value(node, values[node.inputs[0]], shapes)
        except WireError as error:
            raise WireError(f"node {place} of the graph: {error}") from None
        parsed.append(node)
    return tuple(parsed)


def _node(value: Any) -> Node:
    match value:
        case {
            "op": str() as op,
            "output": str() as output,
            "inputs": list() as inputs,
            "tensors": dict() as tensors,
            "attributes": dict() as attributes,
        } if len(value) == 5 and all(isinstance(name, str) for name in (*inputs, *tensors, *tensors.values())):
            longest = max(len(name) for name in (op, output, *inputs, *tensors.values()))
            if longest > MAX_NAME:
                raise WireError(f"a name has at most {MAX_NAME:,} characters. Received: {longest:,}.")
            return Node(op, output, tuple(inputs), tensors, attributes)
    raise WireError(f"it must have op, output, inputs, tensors and attributes. Received: {_shown(value)}")


def _check(node: Node, values: Mapping[str, Value], shapes: Mapping[str, tuple[int, ...]]) -> None:
    rule = RULES.get(node.op)
    if rule is None:
        raise WireError(f"there is no operation {_shown(node.op)}.")
    if node.output in values:
        raise WireError(f"its output {node.output!r} is there already.")
    if unknown := [name for name in node.inputs if name not in values]:
        raise WireError(f"it reads {unknown[0]!r}, which nothing before it gives.")
    if len(node.inputs) != rule.inputs:
        raise WireError(f"{node.op} reads {rule.inputs}. Received: {len(node.inputs)} inputs.")
    if not rule.needs.keys() <= node.tensors.keys() <= rule.needs.keys() | rule.may.keys():
        needs = ", ".join(rule.needs) or "no tensors"
        raise WireError(f"{node.op} holds {needs}. Received: {_shown(list(node.tensors))}.")
    for role, name in node.tensors.items():
        if name not in shapes:
            raise WireError(f"the model has no tensor {name!r}.")
        if len(shapes[name]) != (rank := (rule.needs | rule.may)[role]):
            raise WireError(f"its {role} must have {rank} dimensions. Received: {name!r} of shape {shapes[name]}.")
        if 0 in shapes[name]:
            raise WireError(f"its {role} is empty. Received: {name!r} of shape {shapes[name]}.")
    _check_sizes(node, shapes)
    if node.attributes.keys() != rule.attributes.keys():
        raise WireError(f"{node.op} has {list(rule.attributes)}. Received: {_shown(list(node.attributes))}.")
    for name, fits in rule.attributes.items():
        if not fits(node.attributes[name]):
            raise WireError(f"its {name} does not fit. Received: {_shown(node.attributes[name])}")
    _check_windows(node, shapes)


def _check_sizes(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """All tensors of a node speak of the same channels."""
    channels = {role: shapes[name][0] for role, name in node.tensors.items()}
    if len(set(channels.values())) > 1:
        raise WireError(f"its tensors differ in channels: {channels}.")


def _check_windows(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Groups divide the channels, and every window of a pool meets a pixel."""
    if node.op == "conv2d" and (outputs := shapes[node.tensors["weight"]][0]) % (groups := node.attributes["groups"]):
        raise WireError(f"it divides {outputs:,} channels into {groups:,} groups.")
    if node.op in ("max_pool2d", "avg_pool2d"):
        kernel, padding = node.attributes["kernel"], node.attributes["padding"]
        if any(2 * pad > side for pad, side in zip(padding, kernel, strict=True)):
            raise WireError(f"its padding is more than half of its kernel {kernel}. Received: {padding}.")


def _value(node: Node, source: Value, shapes: Mapping[str, tuple[int, ...]]) -> Value:
    """What a node gives; what it reads must have the channels that its tensors are made for."""
    if node.op.endswith("2d") and source.flat:
        raise WireError(f"{node.op} takes images, but {node.inputs[0]!r} is flat.")
    match node.op:
        case "conv2d":
            weight = shapes[node.tensors["weight"]]
            _expect(source.channels, weight[1] * node.attributes["groups"], "channels")
            return Value(weight[0], False)
        case "linear":
            weight = shapes[node.tensors["weight"]]
            if not source.flat:
                return Value()  # of images it is the last side that changes
            _expect(source.channels, weight[1], "features")
            return Value(weight[0], True)
        case "batch_norm":
            channels = shapes[node.tensors["running_mean"]][0]
            _expect(source.channels, channels, "channels")
            return Value(channels, source.flat)
        case "flatten":
            whole = node.attributes["start"] == 1
            return Value(source.channels if source.flat else None, True) if whole else Value(source.channels)
        case "max_pool2d" | "avg_pool2d" | "adaptive_avg_pool2d":
            return Value(source.channels, False)
    return source


def _expect(received: int | None, expected: int, what: str) -> None:
    if received not in (None, expected):
        raise WireError(f"it takes {expected:,} {what}. Received: {received:,}.")


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # a whole number of too many digits, a list inside itself
        return f"a {type(value).__name__}"
