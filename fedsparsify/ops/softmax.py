"""Shares that add up to one along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, Traced, Untraceable, whole


class Softmax(Operation):
    """The axis counts the batch, as PyTorch's does."""

    name = "softmax"
    onnx_nodes = {"Softmax": "read_onnx"}
    attributes = {"axis": lambda value: whole(value, -32)}
    modules, functions = ("Softmax",), {"softmax": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.dim)

    def read_call(self, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if dim is None or dtype is not None:
            raise Untraceable("a softmax must name its dimension, and no type")
        return Traced({"axis": dim})

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        axis, source = node.attributes["axis"], inputs[0]
        if axis == 0 or (source is not None and not -len(source) <= axis <= len(source)):
            raise ModelError(f"softmax runs over a dimension of samples of shape {source}. Received axis: {axis}.")
        return source

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        powers = np.exp(x[0] - x[0].max(attributes["axis"], keepdims=True))
        return powers / powers.sum(attributes["axis"], keepdims=True)  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return functional.softmax(x[0], attributes["axis"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Softmax", node, axis=node.attributes["axis"])

    def needs_shapes(self, node: Node, inputs: Sequence[Shape]) -> bool:
        """Along another dimension than the channels."""
        return node.attributes["axis"] != 1 and (inputs[0] is None or node.attributes["axis"] != -len(inputs[0]))

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        node.give(self.name, [node.value()], {"axis": int(node.attributes.get("axis", -1))})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.softmax(node)


OPERATION = Softmax()
