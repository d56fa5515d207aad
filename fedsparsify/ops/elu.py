"""x where it is positive, else slope · (exp(x) - 1) (Clevert et al., 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .activation import Activation, Arithmetic
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Tensors, Traced, Untraceable, number


class ELU(Activation):
    """A ReLU that bends towards -slope."""

    name = "elu"
    onnx_nodes = {"Elu": "read_onnx"}
    attributes = {"slope": number}
    modules, functions = ("ELU",), {"elu": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return Traced({"slope": float(module.alpha)}, in_place=bool(module.inplace))

    def read_call(self, alpha: float = 1.0, scale: Any = 1, input_scale: Any = 1, **more: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if (scale, input_scale) != (1, 1):
            raise Untraceable("a graph knows elu without further factors")
        return Traced({"slope": float(alpha)}, in_place=bool(more.get("inplace", False)))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        below = np.float32(attributes["slope"]) * np.expm1(np.minimum(x[0], np.float32(0)))
        return np.where(x[0] > 0, x[0], below)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return functional.elu(x[0], attributes["slope"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Elu", node, alpha=node.attributes["slope"])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        node.give(self.name, [node.value()], {"slope": float(node.attributes.get("alpha", 1.0))})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.activation(node, float(node.attributes["slope"]))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        exponential, f32 = m.exponential, m.f32
        return lambda x, slope: x if x > 0 else slope * (exponential(x) - f32(1))


OPERATION = ELU()
