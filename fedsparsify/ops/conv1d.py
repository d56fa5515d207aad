"""Convolutions of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, Traced, expect, whole
from .conv2d import OPERATION as CONV2D
from .conv2d import convolution
from .windows import counts


class Conv1d(Operation):
    """Weight (out, in / groups, length): a convolution of images of one row."""

    name, sized, windowed = "conv1d", True, True
    tensors, optional = {"weight": 3}, {"bias": 1}
    attributes = {
        "stride": lambda value: whole(value, 1),
        "padding": lambda value: whole(value, 0),
        "dilation": lambda value: whole(value, 1),
        "groups": lambda value: whole(value, 1),
    }
    modules, functions = ("Conv1d",), {"conv1d": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self._flat(CONV2D.read_module(module))

    def read_call(self, *args: Any, **kwargs: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        return self._flat(convolution(*args, **kwargs))

    @staticmethod
    def _flat(traced: Traced) -> Traced:
        sizes = {name: traced.attributes[name][-1] for name in ("stride", "padding", "dilation")}
        return Traced({**sizes, "groups": traced.attributes["groups"]}, traced.tensors)

    def check(self, node: Node, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Groups divide the channels."""
        CONV2D.check(node, tensors)

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        a, (out, depth, length), source = node.attributes, tensors["weight"], inputs[0]
        if source is None:
            return (out, None)
        if len(source) != 2:
            raise ModelError(f"conv1d takes sequences (channels, length). Received: values of shape {source}.")
        expect(source[0], depth * a["groups"], "channels")
        span = (length - 1) * a["dilation"] + 1
        return (out, counts((1, source[1]), (1, span), (1, a["stride"]), (0, a["padding"]))[1])

    @staticmethod
    def image_attributes(a: Attributes) -> dict[str, Any]:
        """Those of a convolution of images of one row."""
        sizes = {"stride": [1, a["stride"]], "padding": [0, a["padding"]], "dilation": [1, a["dilation"]]}
        return {**sizes, "groups": a["groups"]}

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        held = {role: tensor[:, :, None] if role == "weight" else tensor for role, tensor in tensors.items()}
        return CONV2D.reference([x[0][:, :, None]], held, self.image_attributes(attributes))[:, :, 0]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        a = attributes
        sizes = a["stride"], a["padding"], a["dilation"], a["groups"]
        return functional.conv1d(x[0], tensors["weight"], tensors.get("bias"), *sizes)

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        a = node.attributes
        names = [onnx.held(node.tensors[role]) for role in ("weight", "bias") if role in node.tensors]
        sizes = {"strides": [a["stride"]], "pads": [a["padding"]] * 2, "dilations": [a["dilation"]]}
        onnx.emit("Conv", node, *names, **sizes, group=a["groups"])

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.convolution_of_rows(node, self.image_attributes(node.attributes))


OPERATION = Conv1d()
