"""x · weightᵀ + bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, Traced, expect, present


class Linear(Operation):
    """A product with weight (out, in) along the last dimension."""

    name = "linear"
    onnx_nodes = {"Gemm": "read_gemm", "MatMul": "read_onnx"}
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

    def read_gemm(self, node: OnnxNode) -> None:
        """Read Gemm: weight times alpha, bias times beta."""
        a, weight, bias = node.attributes, node.needed(1, "weight"), node.constant(2)
        if a.get("transA", 0):
            raise node.refuse("a graph does not transpose a batch")
        weight = weight if a.get("transB", 0) else weight.T
        tensors = {"weight": node.held("weight", weight * np.float32(a.get("alpha", 1.0)))}
        if bias is not None:
            shifts = np.broadcast_to(bias, (weight.shape[0],)) * np.float32(a.get("beta", 1.0))
            tensors["bias"] = node.held("bias", shifts)
        node.give(self.name, [node.value()], {}, tensors)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read MatMul: with a constant matrix it is linear, else a product of two values."""
        weight = node.constant(1)
        if weight is not None and weight.ndim == 2:
            node.give(self.name, [node.value()], {}, {"weight": node.held("weight", weight.T)})
        else:
            node.give("matmul", node.aligned())

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.linear(node)


OPERATION = Linear()
