"""A graph read back from a file: every node is checked before anything runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ModelError, WireError
from ..graph import INPUT, Node
from ..model import Layout
from ..ops import OPERATIONS, Operation, roles
from ..ops.base import Shape

MAX_NODES = 1 << 12
MAX_NAME = 1024  # characters


def parse_graph(nodes: Any, layout: Layout) -> tuple[Node, ...]:
    """The nodes that a header lists; each reads what came before it and names tensors of the layout."""
    if not isinstance(nodes, list) or not nodes:
        raise WireError(f"a graph must be a list of nodes. Received: {type(nodes).__name__}.")
    if len(nodes) > MAX_NODES:
        raise WireError(f"a graph has at most {MAX_NODES:,} nodes. Received: {len(nodes):,}.")
    shapes = {spec.name: spec.shape for spec in layout}
    values: dict[str, Shape] = {INPUT: None}
    parsed = []
    for place, value in enumerate(nodes):
        try:
            node = _node(value)
            values[node.output] = _checked(node, values, shapes)
        except (ModelError, WireError) as error:
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


def _checked(node: Node, values: Mapping[str, Shape], shapes: Mapping[str, tuple[int, ...]]) -> Shape:
    """The shape of what a node gives, as far as it is known; a node that no network means is refused."""
    operation = OPERATIONS.get(node.op)
    if operation is None or operation.vanishes:
        raise WireError(f"there is no operation {_shown(node.op)}.")
    if node.output in values:
        raise WireError(f"its output {node.output!r} is there already.")
    if unknown := [name for name in node.inputs if name not in values]:
        raise WireError(f"it reads {unknown[0]!r}, which nothing before it gives.")
    if not operation.takes(len(node.inputs)):
        raise WireError(f"{node.op} reads {_count(operation)}. Received: {len(node.inputs)} inputs.")
    _check_tensors(node, operation, shapes)
    if (
        not operation.attributes.keys() - operation.optional_attributes
        <= node.attributes.keys()
        <= operation.attributes.keys()
    ):
        raise WireError(f"{node.op} has {list(operation.attributes)}. Received: {_shown(list(node.attributes))}.")
    for name, value in node.attributes.items():
        if not operation.attributes[name](value):
            raise WireError(f"its {name} does not fit. Received: {_shown(value)}")
    held = roles(node, shapes)
    channels = {role: operation.channels(role, shape, node.attributes) for role, shape in held.items() if shape}
    if len(set(channels.values())) > 1:
        raise WireError(f"its tensors differ in channels: {channels}.")
    operation.check(node, held)
    return operation.shape(node, [values[name] for name in node.inputs], held)


def _count(operation: Operation) -> int | str:
    return "two or more" if operation.inputs is None else operation.inputs


def _check_tensors(node: Node, operation: Operation, shapes: Mapping[str, tuple[int, ...]]) -> None:
    ranks = {**operation.tensors, **operation.optional}
    if not operation.tensors.keys() <= node.tensors.keys() <= ranks.keys():
        needs = ", ".join(operation.tensors) or "no tensors"
        raise WireError(f"{node.op} holds {needs}. Received: {_shown(list(node.tensors))}.")
    for role, name in node.tensors.items():
        if name not in shapes:
            raise WireError(f"the model has no tensor {name!r}.")
        if ranks[role] not in (None, len(shapes[name])):
            raise WireError(
                f"its {role} must have {ranks[role]} dimensions. Received: {name!r} of shape {shapes[name]}."
            )
        if 0 in shapes[name]:
            raise WireError(f"its {role} is empty. Received: {name!r} of shape {shapes[name]}.")


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # a whole number of too many digits, a list inside itself
        return f"a {type(value).__name__}"
