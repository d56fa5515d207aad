"""The dimensions of a sample, from one on, as one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import (
    BATCH,
    Attributes,
    Floats,
    FrontEnd,
    Onnx,
    OnnxNode,
    Operation,
    Shape,
    Tensors,
    Traced,
    Untraceable,
    whole,
)


class Flatten(Operation):
    """`start` counts the batch, as PyTorch's does."""

    name = "flatten"
    onnx_nodes = {"Flatten": "read_onnx"}
    attributes = {"start": lambda value: whole(value, 1)}
    modules = ("Flatten",)
    functions = {"flatten": "read_call", "view": "read_view", "reshape": "read_view"}
    view = True

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.start_dim, module.end_dim)

    def read_call(self, start_dim: int = 0, end_dim: int = -1) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if end_dim != -1 or start_dim < 1:
            raise Untraceable(
                f"a graph flattens to the last dimension, without the batch. Received: {start_dim} … {end_dim}"
            )
        return Traced({"start": start_dim})

    def read_view(self, *shape: Any) -> Traced:
        """`x.view(x.size(0), -1)`, the older way to flatten."""
        sides = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        if len(sides) != 2 or sides[0] is not BATCH or sides[1] != -1:
            raise Untraceable("a graph knows only the reshape to (batch, -1)")
        return Traced({"start": 1})

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        kept, source = node.attributes["start"] - 1, inputs[0]
        if source is None:
            return (None,) if kept == 0 else None
        if kept >= len(source):
            raise ModelError(f"it flattens from dimension {kept + 1}. Received: samples of shape {source}.")
        sides = [side for side in source[kept:] if side is not None]
        return (*source[:kept], prod(sides) if len(sides) == len(source) - kept else None)

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0].reshape(*x[0].shape[: attributes["start"]], -1)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].flatten(attributes["start"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form. 0 keeps a dimension as it is; ONNX's own Flatten would merge the leading ones."""
        shape = np.array([0] * node.attributes["start"] + [-1], np.int64)
        onnx.emit("Reshape", node, onnx.constant(f"{node.output}.shape", shape))

    def needs_shapes(self, node: Node, inputs: Sequence[Shape]) -> bool:
        """Of a part of a sample."""
        return bool(node.attributes["start"] != 1)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        if node.attributes.get("axis", 1) != 1:
            raise node.refuse("a graph flattens whole samples")
        node.give(self.name, [node.value()], {"start": 1})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.flatten(node)


OPERATION = Flatten()
