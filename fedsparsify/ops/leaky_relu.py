"""x where it is positive, else slope · x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .activation import Activation, Arithmetic
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Tensors, Traced, number


class LeakyReLU(Activation):
    """A ReLU that lets a share of negative values pass."""

    name = "leaky_relu"
    onnx_nodes = {"LeakyRelu": "read_onnx"}
    attributes = {"slope": number}
    modules, functions = ("LeakyReLU",), {"leaky_relu": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.negative_slope, module.inplace)

    def read_call(self, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
        """What a function or method does, by its arguments after the first."""
        return Traced({"slope": float(negative_slope)}, in_place=bool(inplace))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.where(x[0] > 0, x[0], np.float32(attributes["slope"]) * x[0])

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return functional.leaky_relu(x[0], attributes["slope"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("LeakyRelu", node, alpha=node.attributes["slope"])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        node.give(self.name, [node.value()], {"slope": float(node.attributes.get("alpha", 0.01))})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.activation(node, float(node.attributes["slope"]))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        return lambda x, slope: x if x > 0 else slope * x


OPERATION = LeakyReLU()
