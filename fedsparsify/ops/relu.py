"""max(x, 0)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Tensors


class ReLU(Operation):
    """A clamp, which the engine folds into the operation before it."""

    name = "relu"
    onnx_nodes = {"Relu": "read_onnx"}
    pointwise = True
    modules, functions = ("ReLU",), {"relu": "read_call"}

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.maximum(x[0], np.float32(0))

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Relu", node)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.clamp(node, 0.0, inf)


OPERATION = ReLU()
