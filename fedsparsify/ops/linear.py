"""x · weightᵀ + bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, Traced, expect, present


class Linear(Operation):
    """A product with weight (out, in) along the last dimension."""

    name = "linear"
    tensors, optional = {"weight": 2}, {"bias": 1}
    modules, functions = ("Linear",), {"linear": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.weight, module.bias)

    def read_call(self, weight: Any, bias: Any = None) -> Traced:
        """What a function does, by its arguments after the first."""
        return Traced({}, present(weight=weight, bias=bias))

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        out, features = tensors["weight"]
        if inputs[0] is None:
            return None
        expect(inputs[0][-1], features, "features")
        return (*inputs[0][:-1], out)

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0] @ tensors["weight"].T + tensors.get("bias", np.float32(0))  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return functional.linear(x[0], tensors["weight"], tensors.get("bias"))

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form: a product with the transposed weight; runtimes fuse it with the sum."""
        weight = onnx.tensor(node.tensors["weight"])
        transposed = onnx.constant(f"{node.tensors['weight']}.T", np.ascontiguousarray(weight.T))
        if "bias" not in node.tensors:
            onnx.emit("MatMul", node, transposed)
            return
        product = onnx.between("MatMul", [node.inputs[0], transposed], f"{node.output}.product")
        onnx.between("Add", [product, onnx.held(node.tensors["bias"])], node.output)

    def needs_shapes(self, node: Node, inputs: Sequence[Shape]) -> bool:
        """Of values that are not flat."""
        return inputs[0] is not None and len(inputs[0]) != 1

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.linear(node)


OPERATION = Linear()
