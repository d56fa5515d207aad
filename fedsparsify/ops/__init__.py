"""One table of operations: what a graph may hold, and everything that is known of it.

Tracing, the file format's checks, shapes, ONNX export, the engine and the adapters of other engines look operations
up here. A file of this folder that defines `OPERATION` is one; docs/extending.md shows how to add another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ..errors import ModelError
from ..graph import INPUT, Node
from .activation import Activation
from .base import Operation, Shape

_modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
_found = sorted((module.OPERATION for module in _modules if hasattr(module, "OPERATION")), key=lambda op: op.name)
OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _found}
ACTIVATIONS = tuple(operation for operation in _found if isinstance(operation, Activation))  # the engine numbers them

__all__ = ["ACTIVATIONS", "OPERATIONS", "Operation", "by_torch", "constants_of", "reference", "roles", "shapes_of"]


def roles(node: Node, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What a node's tensors are, by role."""
    return {role: tensors[name] for role, name in node.tensors.items()}


def shapes_of(
    graph: Sequence[Node], tensors: Mapping[str, tuple[int, ...]], sample: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Shape of every value, without the batch, as PyTorch computes it; what does not fit is an error with its name."""
    shapes: dict[str, Any] = {INPUT: tuple(sample)}
    for node in graph:
        inputs: list[Shape] = [shapes[name] for name in node.inputs]
        try:
            shapes[node.output] = OPERATIONS[node.op].shape(node, inputs, roles(node, tensors))
        except ModelError as error:
            raise ModelError(f"layer {node.output!r}: {error}") from None
    return shapes


def constants_of(graph: Sequence[Node]) -> set[str]:
    """Values that do not depend on the input: every sample has them alike."""
    found: set[str] = set()
    for node in graph:
        if all(name in found for name in node.inputs):
            found.add(node.output)
    return found


def reference(graph: Sequence[Node], tensors: Mapping[str, Any], x: Any) -> Any:
    """What a graph gives for a batch, in plain numpy."""
    values = {INPUT: x}
    for node in graph:
        inputs = [values[name] for name in node.inputs]
        values[node.output] = OPERATIONS[node.op].reference(inputs, roles(node, tensors), node.attributes)
    return values[graph[-1].output]


def by_torch(functional: Any, graph: Sequence[Node], tensors: Mapping[str, Any], x: Any) -> Any:
    """What a graph gives for a batch, by torch.nn.functional, which is handed in."""
    values = {INPUT: x}
    for node in graph:
        inputs = [values[name] for name in node.inputs]
        values[node.output] = OPERATIONS[node.op].torch(functional, inputs, roles(node, tensors), node.attributes)
    return values[graph[-1].output]
