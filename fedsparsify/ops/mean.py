"""The mean over some dimensions of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, whole


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

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.mean(node)


OPERATION = Mean()
