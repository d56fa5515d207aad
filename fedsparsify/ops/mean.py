"""The mean over some dimensions of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, whole


def _axes(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and 1 <= len(value) <= 32
        and all(whole(item, 1) for item in value)
        and list(value) == sorted(set(value))
    )


class Mean(Operation):
    """Over `axes`, which count the batch; each of them becomes 1."""

    name, sized = "mean", True
    onnx_nodes = {"ReduceMean": "read_onnx"}
    attributes = {"axes": _axes}

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        axes, source = node.attributes["axes"], inputs[0]
        if source is None:
            return None
        if axes[-1] > len(source):
            raise ModelError(f"it takes the mean over dimensions {list(axes)}. Received: samples of shape {source}.")
        return tuple(1 if k + 1 in axes else side for k, side in enumerate(source))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.asarray(x[0].mean(tuple(attributes["axes"]), keepdims=True), np.float32)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].mean(tuple(attributes["axes"]), keepdim=True)

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        axes = onnx.constant(f"{node.output}.axes", np.array(node.attributes["axes"], np.int64))
        onnx.emit("ReduceMean", node, axes, keepdims=1)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        given = node.constant(1) if node.count > 1 else node.attributes.get("axes")
        rank = len(node.shape()) + 1
        axes = sorted(int(axis) % rank for axis in given) if given is not None else [0]
        if 0 in axes:
            raise node.refuse("a graph takes means over dimensions of a sample")
        if node.attributes.get("keepdims", 1):
            node.give(self.name, [node.value()], {"axes": axes})
            return
        made = node.between(self.name, [node.value()], {"axes": axes})
        sizes = [side for k, side in enumerate(node.shape()) if k + 1 not in axes]
        if len(sizes) == 1:
            node.give("flatten", [made], {"start": 1})
        else:
            node.give("reshape", [made], {"start": 1, "end": rank, "sizes": sizes})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.mean(node)


OPERATION = Mean()
