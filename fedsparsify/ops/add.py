"""The sum of two values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Shape, Tensors
from .broadcast import Broadcast


class Add(Broadcast):
    """x + y."""

    name, verb = "add", "adds"
    onnx_nodes = {"Add": "read_onnx", "Sub": "read_onnx", "Sum": "read_onnx"}
    functions = {"add": "read_call"}

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0] + x[1]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0] + x[1]

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Add", node)

    def needs_shapes(self, node: Node, inputs: Sequence[Shape]) -> bool:
        """Where a side is repeated."""
        return inputs[0] != inputs[1] and None not in inputs

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form; a difference is a sum with a constant of the other sign."""
        if node.count != 2:
            raise node.refuse("a graph adds two values")
        if node.op == "Sub":
            node.give(self.name, [node.value(0), node.negative(1)])
        else:
            node.give(self.name, node.aligned())

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.add(node)


OPERATION = Add()
