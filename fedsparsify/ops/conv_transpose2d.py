"""Transposed convolutions of images, which make them larger."""

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
    Side,
    Tensors,
    Traced,
    Untraceable,
    as_pair,
    expect,
    image,
    pair_of,
    present,
    whole,
)
from .conv2d import OPERATION as CONV2D


class ConvTranspose2d(Operation):
    """Weight (in, out / groups, height, width): each pixel adds its kernel to the result, `stride` pixels apart.

    `padding` pixels are cut off all around, except `output_padding` of them at the lower and the right end.
    """

    name, windowed, sized = "conv_transpose2d", True, True
    onnx_nodes = {"ConvTranspose": "read_onnx"}
    tensors, optional = {"weight": 4}, {"bias": 1}
    attributes = {
        "stride": pair_of(1),
        "padding": pair_of(0),
        "output_padding": pair_of(0),
        "groups": lambda value: whole(value, 1),
    }
    modules, functions = ("ConvTranspose2d",), {"conv_transpose2d": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        sizes = module.stride, module.padding, module.output_padding, module.groups, module.dilation
        return self.read_call(module.weight, module.bias, *sizes)

    def read_call(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Traced:
        """What a function does, by its arguments after the first."""
        if as_pair(dilation) != [1, 1]:
            raise Untraceable("a graph knows transposed convolutions without dilation")
        sizes = {"stride": as_pair(stride), "padding": as_pair(padding), "output_padding": as_pair(output_padding)}
        return Traced({**sizes, "groups": groups}, present(weight=weight, bias=bias))

    def channels(self, role: str, shape: tuple[int, ...], attributes: Attributes) -> int:
        """The channels of the result, as one of the tensors has them."""
        return shape[1] * int(attributes["groups"]) if role == "weight" else shape[0]

    def check(self, node: Node, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Groups divide the channels; what is added at the end is less than a stride."""
        CONV2D.check(node, tensors)
        a = node.attributes
        if any(more >= step for more, step in zip(a["output_padding"], a["stride"], strict=True)):
            raise ModelError(f"output_padding must be less than the stride, {a['stride']}: {a['output_padding']}.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        a, weight = node.attributes, tensors["weight"]
        channels, *sides = image(inputs[0], self.name)
        expect(channels, weight[0], "channels")
        sizes = zip(sides, a["stride"], a["padding"], a["output_padding"], weight[2:], strict=True)
        made: list[Side] = []
        for side, step, cut, more, kernel in sizes:
            made.append(None if side is None else (side - 1) * step + kernel + more - 2 * cut)
            if side is not None and (side - 1) * step + kernel + more <= 2 * cut:
                raise ModelError(f"it cuts off {cut:,} pixels on both sides, which leaves none of the result.")
        return (weight[1] * a["groups"], made[0], made[1])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        weight, a = tensors["weight"], attributes
        (height, width), (down, across) = weight.shape[2:], a["stride"]
        rows, columns = ((n - 1) * s + 1 for n, s in zip(x[0].shape[2:], a["stride"], strict=True))
        ends = [more + kernel - 1 for more, kernel in zip(a["output_padding"], weight.shape[2:], strict=True)]
        apart = np.zeros((*x[0].shape[:2], rows + height - 1 + ends[0], columns + width - 1 + ends[1]), np.float32)
        apart[:, :, height - 1 : height - 1 + rows : down, width - 1 : width - 1 + columns : across] = x[0]
        kernels = [part.swapaxes(0, 1) for part in np.split(weight[:, :, ::-1, ::-1], a["groups"])]
        plain = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": a["groups"]}
        made = CONV2D.reference([apart], {**tensors, "weight": np.concatenate(kernels)}, plain)
        top, left = a["padding"]
        return np.ascontiguousarray(made[:, :, top : made.shape[2] - top, left : made.shape[3] - left])

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        sizes = (tuple(attributes[name]) for name in ("stride", "padding", "output_padding"))
        weight, bias = tensors["weight"], tensors.get("bias")
        return functional.conv_transpose2d(x[0], weight, bias, *sizes, attributes["groups"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        a = node.attributes
        names = [onnx.held(node.tensors[role]) for role in ("weight", "bias") if role in node.tensors]
        sizes = {"strides": a["stride"], "pads": [*a["padding"], *a["padding"]], "output_padding": a["output_padding"]}
        onnx.emit("ConvTranspose", node, *names, **sizes, group=a["groups"])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        weight, bias, a = node.needed(1, "weight"), node.constant(2), node.attributes
        pads = list(a.get("pads", [0, 0, 0, 0]))
        plain = weight.ndim == 4 and pads[:2] == pads[2:] and set(a.get("dilations", [1])) == {1}
        if not plain or a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in a:
            raise node.refuse("a graph knows transposed convolutions of images, cut alike on both sides, undilated")
        more = list(a.get("output_padding", [0, 0]))
        sizes = {"stride": list(a.get("strides", [1, 1])), "padding": pads[:2], "output_padding": more}
        tensors = {"weight": node.held("weight", weight)}
        if bias is not None:
            tensors["bias"] = node.held("bias", bias)
        node.give(self.name, [node.value()], {**sizes, "groups": int(a.get("group", 1))}, tensors)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.transposed_convolution(node)


OPERATION = ConvTranspose2d()
