"""The product of two values, each with each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Tensors
from .broadcast import Broadcast


class Mul(Broadcast):
    """x · y, as squeeze-and-excite and layer scales have it."""

    sized = True
    name, verb = "mul", "multiplies"
    onnx_nodes = {"Mul": "read_onnx", "Div": "read_onnx", "Pow": "read_power"}
    functions = {"mul": "read_call", "multiply": "read_call"}

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0] * x[1]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0] * x[1]

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Mul", node)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form; a quotient is a product with a constant's reciprocal."""
        if node.op == "Div":
            node.give(self.name, [node.value(0), node.inverse(1)])
        else:
            node.give(self.name, node.aligned())

    def read_power(self, node: OnnxNode) -> None:
        """Read Pow: squares and roots."""
        power = node.needed(1, "exponent")
        if power.size != 1 or float(power.reshape(-1)[0]) not in (2.0, 0.5):
            raise node.refuse("a graph has squares and square roots. Received: other exponents")
        value = node.value()
        node.give(*(("sqrt", [value]) if float(power.reshape(-1)[0]) == 0.5 else (self.name, [value, value])))

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.multiply(node)


OPERATION = Mul()
