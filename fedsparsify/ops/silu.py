"""x · sigmoid(x), also called swish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Node
from .activation import Activation, Arithmetic
from .base import Floats, Onnx


class SiLU(Activation):
    """x / (1 + exp(-x))."""

    name = "silu"
    modules, functions = ("SiLU",), {"silu": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        with np.errstate(over="ignore"):
            return x / (np.float32(1) + np.exp(-x))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        exponential, f32 = m.bounded_exponential, m.f32

        def silu(x: Any, slope: Any) -> Any:
            x = f32(-87) if x < f32(-87) else x  # below which the exponential stays the same
            return x / (f32(1) + exponential(-x))

        return silu

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form: this opset has no operator for it."""
        onnx.emit("Mul", node, onnx.between("Sigmoid", node.inputs, f"{node.output}.gate"))


OPERATION = SiLU()
