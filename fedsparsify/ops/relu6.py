"""min(max(x, 0), 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Tensors


class ReLU6(Operation):
    """A clamp, which the engine folds into the operation before it."""

    name = "relu6"
    pointwise = True
    modules, functions = ("ReLU6",), {"relu6": "read_call"}

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.clip(x[0], np.float32(0), np.float32(6))

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Clip", node, *(onnx.constant(f"{node.output}.{n}", np.float32(n)) for n in (0, 6)))

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.clamp(node, 0.0, 6.0)


OPERATION = ReLU6()
