"""Layer norm: zero mean and unit variance over the last dimensions of each sample (Ba et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
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
    number,
    present,
    whole,
)


class LayerNorm(Operation):
    """(x - mean) / √(variance + eps) · weight + bias, over the last `axes` dimensions."""

    name, sized = "layer_norm", True
    onnx_nodes = {"LayerNormalization": "read_onnx"}
    optional = {"weight": None, "bias": None}
    attributes = {"axes": lambda value: whole(value, 1), "eps": lambda value: number(value) and value >= 0}
    functions = {"layer_norm": "read_call"}

    def read_call(
        self, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *more: Any
    ) -> Traced:
        """What a function or method does, by its arguments after the first."""
        return Traced({"axes": len(normalized_shape), "eps": float(eps)}, present(weight=weight, bias=bias))

    def check(self, node: Node, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Scales and shifts are of the dimensions that are normed."""
        for role, shape in tensors.items():
            if len(shape) != node.attributes["axes"] or shape != next(iter(tensors.values())):
                raise ModelError(f"it norms {node.attributes['axes']} dimensions. Received: {role} of shape {shape}.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        axes, source = node.attributes["axes"], inputs[0]
        if source is None:
            return None
        if axes > len(source):
            raise ModelError(f"it norms {axes} dimensions. Received: samples of shape {source}.")
        for shape in tensors.values():
            if any(side not in (None, own) for side, own in zip(source[-axes:], shape, strict=True)):
                raise ModelError(f"it norms values of shape {shape}. Received: samples of shape {source}.")
        return source

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        axes = tuple(range(-attributes["axes"], 0))
        centred = x[0] - x[0].mean(axes, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axes, keepdims=True) + np.float32(attributes["eps"]))
        made = centred / spread * tensors.get("weight", np.float32(1)) + tensors.get("bias", np.float32(0))
        return np.asarray(made, np.float32)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        sides = x[0].shape[-attributes["axes"] :]
        return functional.layer_norm(x[0], sides, tensors.get("weight"), tensors.get("bias"), attributes["eps"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form, whose scale is not optional."""
        axes = node.attributes["axes"]
        ones = np.ones(onnx.shapes[node.inputs[0]][-axes:], np.float32)
        weight = node.tensors.get("weight")
        names = [onnx.held(weight) if weight else onnx.constant(f"{node.output}.weight", ones)]
        names += [onnx.held(node.tensors["bias"])] if "bias" in node.tensors else []
        onnx.emit("LayerNormalization", node, *names, axis=-axes, epsilon=node.attributes["eps"])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        rank, axis = len(node.shape()) + 1, int(node.attributes.get("axis", -1))
        tensors = {"weight": node.held("weight", node.needed(1, "weight"))}
        if node.constant(2) is not None:
            tensors["bias"] = node.held("bias", node.constant(2))
        attributes = {"axes": rank - axis % rank, "eps": float(node.attributes.get("epsilon", 1e-5))}
        node.give(self.name, [node.value()], attributes, tensors)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.layer_norm(node)


OPERATION = LayerNorm()
