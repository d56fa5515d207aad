"""x · weightᵀ + bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, Traced, expect, present


class Linear(Operation):
    """A product with weight (out, in) along the last dimension; in the engine, of flat samples."""

    name = "linear"
    tensors, optional = {"weight": 2}, {"bias": 1}
    modules = ("Linear",)

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return Traced({}, present(weight=module.weight, bias=module.bias))

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

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.linear(node)

    def engine_takes(self, node: Node, inputs: Sequence[tuple[int, ...]]) -> None:
        """Flat samples."""
        if len(inputs[0]) != 1:
            raise ModelError(f"it is linear and takes flat values. Received: images of {inputs[0]}.")


OPERATION = Linear()
