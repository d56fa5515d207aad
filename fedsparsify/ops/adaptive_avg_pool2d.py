"""The mean of as many windows as the output has pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .base import (
    Attributes,
    Floats,
    FrontEnd,
    Onnx,
    OnnxNode,
    Operation,
    Shape,
    Tensors,
    Traced,
    as_pair,
    image,
    pair_of,
)


class AdaptiveAvgPool2d(Operation):
    """Window i of n over a side reaches from ⌊i · side / n⌋ to ⌈(i + 1) · side / n⌉."""

    name, windowed = "adaptive_avg_pool2d", True
    onnx_nodes = {"GlobalAveragePool": "read_onnx"}
    attributes = {"size": pair_of(1)}
    modules, functions = ("AdaptiveAvgPool2d",), {"adaptive_avg_pool2d": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.output_size)

    def read_call(self, output_size: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        return Traced({"size": as_pair(output_size)})

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        return (image(inputs[0], self.name)[0], *node.attributes["size"])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        rows, columns = (means(side, out) for side, out in zip(x[0].shape[2:], attributes["size"], strict=True))
        return np.asarray(rows @ x[0] @ columns.T, np.float32)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        return functional.adaptive_avg_pool2d(x[0], attributes["size"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form: pooling where the windows are equal, else a product with the means' weights."""
        sides, target = onnx.shapes[node.inputs[0]][-2:], list(node.attributes["size"])
        if target == [1, 1]:
            onnx.emit("GlobalAveragePool", node)
        elif not any(side % out for side, out in zip(sides, target, strict=True)):
            window = [side // out for side, out in zip(sides, target, strict=True)]
            onnx.emit("AveragePool", node, kernel_shape=window, strides=window)
        else:
            rows, columns = (means(side, out) for side, out in zip(sides, target, strict=True))
            right = onnx.constant(f"{node.output}.means_of_columns", np.ascontiguousarray(columns.T))
            across = onnx.between("MatMul", [node.inputs[0], right], f"{node.output}.columns")
            onnx.between("MatMul", [onnx.constant(f"{node.output}.means_of_rows", rows), across], node.output)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        node.give(self.name, [node.value()], {"size": [1, 1]})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.adaptive_pool(node)


def means(side: int, out: int) -> Floats:
    """The weights (out, side) with which one axis is averaged."""
    weights = np.zeros((out, side), np.float32)
    for i in range(out):
        first, last = i * side // out, -(-(i + 1) * side // out)
        weights[i, first:last] = 1 / (last - first)
    return weights


OPERATION = AdaptiveAvgPool2d()
