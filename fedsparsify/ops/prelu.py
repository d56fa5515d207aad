"""x where it is positive, else a learned factor times x (He et al., 2015)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, Traced, expect


class PReLU(Operation):
    """One factor per channel, or one for all."""

    name, sized = "prelu", True
    onnx_nodes = {"PRelu": "read_onnx"}
    tensors = {"weight": 1}
    modules, functions = ("PReLU",), {"prelu": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.weight)

    def read_call(self, weight: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        return Traced({}, {"weight": weight})

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        if inputs[0] is not None and tensors["weight"] != (1,):
            expect(inputs[0][0], tensors["weight"][0], "channels")
        return inputs[0]

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        factors = tensors["weight"].reshape(-1, *[1] * (x[0].ndim - 2))
        return np.where(x[0] > 0, x[0], factors * x[0])

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return functional.prelu(x[0], tensors["weight"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        weight = onnx.tensor(node.tensors["weight"])
        sides = (-1, *[1] * (len(onnx.shapes[node.inputs[0]]) - 1))
        onnx.emit("PRelu", node, onnx.constant(f"{node.output}.slope", weight.reshape(sides)))

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        slopes = node.needed(1, "slope")
        if slopes.size not in (1, node.shape()[0]):
            raise node.refuse("a graph has one slope per channel")
        node.give(self.name, [node.value()], {}, {"weight": node.held("weight", slopes.reshape(-1))})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.prelu(node)


OPERATION = PReLU()
