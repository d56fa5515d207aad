"""The sum of two values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from ..errors import ModelError
from ..graph import Node
from .base import VALUE, Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, Traced, Untraceable


class Add(Operation):
    """Of equal shapes in the engine; ONNX and PyTorch also repeat sides of one."""

    name, inputs = "add", 2
    functions = {"add": "read_call"}

    def read_call(self, other: Any, **more: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if other is not VALUE or more:
            raise Untraceable("a graph adds two values of the network")
        return Traced()

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        first, second = inputs
        if first is None or second is None:
            return None
        sides = []
        for a, b in zip_longest(reversed(first), reversed(second), fillvalue=1):
            if None not in (a, b) and a != b and 1 not in (a, b):
                raise ModelError(f"it adds values of shapes {first} and {second}.")
            sides.append(None if a is None or b is None else max(a, b))
        return tuple(reversed(sides))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0] + x[1]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0] + x[1]

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Add", node)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.add(node)

    def engine_takes(self, node: Node, inputs: Sequence[tuple[int, ...]]) -> None:
        """Equal shapes."""
        if inputs[0] != inputs[1]:
            raise ModelError(f"it adds values of shapes {inputs[0]} and {inputs[1]}.")


OPERATION = Add()
