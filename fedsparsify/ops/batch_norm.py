"""Batch norm as it evaluates: scale and shift per channel, by running statistics."""

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
    Untraceable,
    expect,
    number,
    present,
)


class BatchNorm(Operation):
    """(x - running_mean) / √(running_var + eps) · weight + bias."""

    name = "batch_norm"
    onnx_nodes = {"BatchNormalization": "read_onnx"}
    tensors, optional = {"running_mean": 1, "running_var": 1}, {"weight": 1, "bias": 1}
    attributes = {"eps": lambda value: number(value) and value >= 0}
    modules = ("BatchNorm1d", "BatchNorm2d")
    functions = {"batch_norm": "read_call"}
    aten = {"batch_norm": "read_aten", "_native_batch_norm_legit_no_training": "read_evaluating"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        if module.running_mean is None:
            raise Untraceable("a batch norm without running statistics")
        statistics = {"running_mean": module.running_mean, "running_var": module.running_var}
        return Traced({"eps": module.eps}, present(weight=module.weight, bias=module.bias, **statistics))

    def read_call(
        self,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: Any = False,
        momentum: Any = 0.1,
        eps: float = 1e-5,
    ) -> Traced:
        """What torch.nn.functional's does, by its arguments after the first."""
        return self.read_aten(weight, bias, running_mean, running_var, training, momentum, eps)

    def read_aten(
        self,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        training: Any,
        momentum: Any,
        eps: float,
        cudnn: Any = False,
    ) -> Traced:
        """What ATen's does."""
        if training or running_mean is None:
            raise Untraceable("a batch norm without running statistics")
        statistics = {"running_mean": running_mean, "running_var": running_var}
        return Traced({"eps": float(eps)}, present(weight=weight, bias=bias, **statistics))

    def read_evaluating(
        self, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: float
    ) -> Traced:
        """What ATen's does where a network evaluates."""
        return self.read_aten(weight, bias, running_mean, running_var, False, momentum, eps)

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        channels, source = tensors["running_mean"][0], inputs[0]
        if source is None:
            return None
        expect(source[0], channels, "channels")
        return (channels, *source[1:])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        scale, shift = (part.astype(np.float32) for part in _affine(tensors, attributes))
        sides = (-1, *[1] * (x[0].ndim - 2))
        return x[0] * scale.reshape(sides) + shift.reshape(sides)  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        statistics = tensors["running_mean"], tensors["running_var"]
        return functional.batch_norm(
            x[0], *statistics, tensors.get("weight"), tensors.get("bias"), eps=attributes["eps"]
        )

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        channels = onnx.tensor(node.tensors["running_mean"]).size
        names = []
        for role, usual in (("weight", 1), ("bias", 0)):
            held, filled = node.tensors.get(role), np.full(channels, usual, np.float32)
            names.append(onnx.held(held) if held else onnx.constant(f"{node.output}.{role}", filled))
        statistics = [onnx.held(node.tensors[role]) for role in ("running_mean", "running_var")]
        onnx.emit("BatchNormalization", node, *names, *statistics, epsilon=node.attributes["eps"])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        if node.attributes.get("training_mode", 0):
            raise node.refuse("it is a batch norm that trains")
        names = ("weight", "bias", "running_mean", "running_var")
        tensors = {role: node.held(role, node.needed(place + 1, role)) for place, role in enumerate(names)}
        node.give(self.name, [node.value()], {"eps": float(node.attributes.get("epsilon", 1e-5))}, tensors)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.affine(node, *_affine({role: engine.tensor(node, role) for role in node.tensors}, node.attributes))


def _affine(tensors: Tensors, attributes: Attributes) -> tuple[Any, Any]:
    """Scale and shift in float64."""
    mean, variance = (tensors[role].astype(np.float64) for role in ("running_mean", "running_var"))
    spread = variance + float(attributes["eps"])
    if not (spread > 0).all():
        raise ModelError(f"variance and eps must have a positive sum. Received: {spread.min()}.")
    with np.errstate(all="ignore"):  # what is beyond float32 becomes infinite, as in training
        scale = tensors.get("weight", np.ones(mean.size, np.float32)) / np.sqrt(spread)
        return scale, tensors.get("bias", np.zeros(mean.size, np.float32)) - mean * scale


OPERATION = BatchNorm()
