"""A tensor of the model as a value that every sample has alike: position embeddings, class tokens, layer scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors


class Parameter(Operation):
    """The tensor itself."""

    name, inputs, sized = "parameter", 0, True
    tensors = {"value": None}

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        return tuple(tensors["value"])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy, for a batch of one, which is every sample's."""
        return tensors["value"][None]  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return tensors["value"][None]

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Identity", node, onnx.constant(f"{node.output}.value", onnx.tensor(node.tensors["value"])[None]))

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.constant(node, engine.tensor(node, "value"))


OPERATION = Parameter()
