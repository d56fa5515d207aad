"""A graph read back from a file: every node is checked before anything runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import WireError
from ..graph import INPUT, Node
from ..model import Layout


def _counts(least: int) -> Callable[[Any], bool]:
    """Whether a value is [h, w], both at least `least`."""
    return lambda value: isinstance(value, list) and len(value) == 2 and all(_whole(item, least) for item in value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


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
        needs={"running_mean": 1, "running_var": 1}, may={"weight": 1, "bias": 1}, attributes={"eps": _number}
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


def parse_graph(nodes: Any, layout: Layout) -> tuple[Node, ...]:
    """The nodes that a header lists; each reads what came before it and names tensors of the layout."""
    if not isinstance(nodes, list) or not nodes:
        raise WireError(f"a graph must be a list of nodes. Received: {type(nodes).__name__}.")
    shapes = {spec.name: spec.shape for spec in layout}
    values = {INPUT}
    parsed = []
    for place, value in enumerate(nodes):
        try:
            node = _node(value)
            _check(node, values, shapes)
        except WireError as error:
            raise WireError(f"node {place} of the graph: {error}") from None
        values.add(node.output)
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
        } if len(value) == 5 and all(isinstance(name, str) for name in (*inputs, *tensors.values())):
            return Node(op, output, tuple(inputs), tensors, attributes)
    raise WireError(f"it must have op, output, inputs, tensors and attributes. Received: {str(value)[:80]}")


def _check(node: Node, values: set[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    rule = RULES.get(node.op)
    if rule is None:
        raise WireError(f"there is no operation {node.op!r}.")
    if node.output in values:
        raise WireError(f"its output {node.output!r} is there already.")
    if unknown := [name for name in node.inputs if name not in values]:
        raise WireError(f"it reads {unknown[0]!r}, which nothing before it gives.")
    if len(node.inputs) != rule.inputs:
        raise WireError(f"{node.op} reads {rule.inputs}. Received: {len(node.inputs)} inputs.")
    if not rule.needs.keys() <= node.tensors.keys() <= rule.needs.keys() | rule.may.keys():
        raise WireError(f"{node.op} holds {', '.join(rule.needs) or 'no tensors'}. Received: {list(node.tensors)}.")
    for role, name in node.tensors.items():
        if name not in shapes:
            raise WireError(f"the model has no tensor {name!r}.")
        if len(shapes[name]) != (rank := (rule.needs | rule.may)[role]):
            raise WireError(f"its {role} must have {rank} dimensions. Received: {name!r} of shape {shapes[name]}.")
    _check_sizes(node, shapes)
    if node.attributes.keys() != rule.attributes.keys():
        raise WireError(f"{node.op} has {list(rule.attributes)}. Received: {list(node.attributes)}.")
    for name, fits in rule.attributes.items():
        if not fits(node.attributes[name]):
            raise WireError(f"its {name} does not fit. Received: {str(node.attributes[name])[:80]}")


def _check_sizes(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """All tensors of a node speak of the same channels."""
    channels = {role: shapes[name][0] for role, name in node.tensors.items()}
    if len(set(channels.values())) > 1:
        raise WireError(f"its tensors differ in channels: {channels}.")
