"""min(max(x + 3, 0), 6) / 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Node
from .activation import Activation, Arithmetic
from .base import Floats, Onnx, OnnxNode


class Hardsigmoid(Activation):
    """The logistic function by straight lines."""

    name = "hardsigmoid"
    onnx_nodes = {"HardSigmoid": "read_onnx"}
    modules, functions = ("Hardsigmoid",), {"hardsigmoid": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        return np.clip(x + np.float32(3), np.float32(0), np.float32(6)) / np.float32(6)

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        f32 = m.f32
        return lambda x, slope: min(max(x + f32(3), f32(0)), f32(6)) / f32(6)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form, whose usual slope is another."""
        slope, middle = float(node.attributes.get("alpha", 0.2)), float(node.attributes.get("beta", 0.5))
        if abs(slope - 1 / 6) > 1e-6 or middle != 0.5:
            raise node.refuse(f"a graph knows HardSigmoid with alpha 1/6 and beta 0.5, not {slope} and {middle}")
        node.give(self.name, [node.value()])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("HardSigmoid", node, alpha=1 / 6, beta=0.5)


OPERATION = Hardsigmoid()
