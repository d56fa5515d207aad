"""Group norm: zero mean and unit variance over groups of channels of each sample (Wu and He, 2018)."""

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
    expect,
    number,
    present,
    whole,
)


class GroupNorm(Operation):
    """(x - mean) / √(variance + eps) per group and sample, then scale and shift per channel."""

    name, sized = "group_norm", True
    onnx_nodes = {"InstanceNormalization": "read_onnx"}
    optional = {"weight": 1, "bias": 1}
    attributes = {"groups": lambda value: whole(value, 1), "eps": lambda value: number(value) and value >= 0}
    modules, functions = ("GroupNorm",), {"group_norm": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.num_groups, module.weight, module.bias, module.eps)

    def read_call(self, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *more: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        return Traced({"groups": num_groups, "eps": float(eps)}, present(weight=weight, bias=bias))

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        groups, source = node.attributes["groups"], inputs[0]
        if source is None:
            return None
        for shape in tensors.values():
            expect(source[0], shape[0], "channels")
        if source[0] is not None and source[0] % groups:
            raise ModelError(f"it divides {source[0]:,} channels into {groups:,} groups.")
        return source

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        grouped = x[0].reshape(len(x[0]), attributes["groups"], -1)
        centred = grouped - grouped.mean(2, keepdims=True)
        spread = np.sqrt((centred * centred).mean(2, keepdims=True) + np.float32(attributes["eps"]))
        made, sides = (centred / spread).reshape(x[0].shape), (-1, *[1] * (x[0].ndim - 2))
        for role, combine in (("weight", np.multiply), ("bias", np.add)):
            made = combine(made, tensors[role].reshape(sides)) if role in tensors else made
        return np.asarray(made, np.float32)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        scaling = tensors.get("weight"), tensors.get("bias")
        return functional.group_norm(x[0], attributes["groups"], *scaling, attributes["eps"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form: instance norm of the groups, whose scales are not those of the channels."""
        a, shape = node.attributes, onnx.shapes[node.inputs[0]]
        name, groups = node.output, a["groups"]
        parted = onnx.constant(f"{name}.parts", np.array([0, groups, -1], np.int64))
        filled = [onnx.constant(f"{name}.{n}s", np.full(groups, n, np.float32)) for n in (1, 0)]
        given = onnx.between("Reshape", [node.inputs[0], parted], f"{name}.grouped")
        normed = onnx.between("InstanceNormalization", [given, *filled], f"{name}.normed", epsilon=a["eps"])
        whole_shape = onnx.constant(f"{name}.shape", np.array([0, *shape], np.int64))
        sides = (-1, *[1] * (len(shape) - 1))
        left = [role for role in ("weight", "bias") if role in node.tensors]
        made = onnx.between("Reshape", [normed, whole_shape], name if not left else f"{name}.whole")
        for role in left:
            scaling = onnx.constant(f"{name}.{role}", onnx.tensor(node.tensors[role]).reshape(sides))
            op = "Mul" if role == "weight" else "Add"
            made = onnx.between(op, [made, scaling], name if role == left[-1] else f"{name}.scaled")

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form of a norm of each channel."""
        tensors = {role: node.held(role, node.needed(place + 1, role)) for place, role in enumerate(("weight", "bias"))}
        attributes = {"groups": node.shape()[0], "eps": float(node.attributes.get("epsilon", 1e-5))}
        node.give(self.name, [node.value()], attributes, tensors)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.group_norm(node)


OPERATION = GroupNorm()
