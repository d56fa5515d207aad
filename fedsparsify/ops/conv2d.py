"""Convolutions of images."""

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
    as_pair,
    expect,
    image,
    pair_of,
    present,
    whole,
)
from .windows import counts, padded, sliding


class Conv2d(Operation):
    """Weight (out, in / groups, height, width); zeros around the image."""

    name, windowed = "conv2d", True
    onnx_nodes = {"Conv": "read_onnx"}
    tensors, optional = {"weight": 4}, {"bias": 1}
    attributes = {
        "stride": pair_of(1),
        "padding": pair_of(0),
        "dilation": pair_of(1),
        "groups": lambda value: whole(value, 1),
    }
    modules, functions = ("Conv2d",), {"conv2d": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        if module.padding_mode != "zeros":
            raise Untraceable(f"a convolution pads with {module.padding_mode!r}; a graph knows zeros")
        sizes = module.stride, module.padding, module.dilation, module.groups
        return convolution(module.weight, module.bias, *sizes)

    def read_call(self, *args: Any, **kwargs: Any) -> Traced:
        """What a function does, by its arguments after the first."""
        return convolution(*args, **kwargs)

    def check(self, node: Node, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Groups divide the channels."""
        outputs, groups = tensors["weight"][0], node.attributes["groups"]
        if outputs % groups:
            raise ModelError(f"it divides {outputs:,} channels into {groups:,} groups.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        a, weight = node.attributes, tensors["weight"]
        channels, *sides = image(inputs[0], self.name)
        expect(channels, weight[1] * a["groups"], "channels")
        spans = [(kernel - 1) * gap + 1 for kernel, gap in zip(weight[2:], a["dilation"], strict=True)]
        return (weight[0], *counts(sides, spans, a["stride"], a["padding"]))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        weight, groups = tensors["weight"], attributes["groups"]
        given = padded(x[0], attributes["padding"], (0, 0), 0)
        windows = sliding(given, weight.shape[2:], attributes["stride"], attributes["dilation"])
        parts = []
        for part, kernels in zip(np.split(windows, groups, 1), np.split(weight, groups), strict=True):
            parts.append(np.tensordot(part, kernels, ((1, 4, 5), (1, 2, 3))))  # (batch, rows, columns, out)
        result = np.concatenate(parts, 3).transpose(0, 3, 1, 2)
        return result + tensors["bias"][:, None, None] if "bias" in tensors else result

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        sizes = (tuple(attributes[name]) for name in ("stride", "padding", "dilation"))
        return functional.conv2d(x[0], tensors["weight"], tensors.get("bias"), *sizes, attributes["groups"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        a = node.attributes
        names = [onnx.held(node.tensors[role]) for role in ("weight", "bias") if role in node.tensors]
        sizes = {"strides": a["stride"], "pads": [*a["padding"], *a["padding"]], "dilations": a["dilation"]}
        onnx.emit("Conv", node, *names, **sizes, group=a["groups"])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        weight, bias, a = node.needed(1, "weight"), node.constant(2), node.attributes
        sides = weight.ndim - 2
        pads = list(a.get("pads", [0] * 2 * sides))
        if (
            a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
            or pads[:sides] != pads[sides:]
            or sides not in (1, 2)
        ):
            raise node.refuse("a graph knows convolutions of one or two dimensions, padded alike on both sides")
        sizes = {
            "stride": list(a.get("strides", [1] * sides)),
            "padding": pads[:sides],
            "dilation": list(a.get("dilations", [1] * sides)),
        }
        tensors = {"weight": node.held("weight", weight)}
        if bias is not None:
            tensors["bias"] = node.held("bias", bias)
        name, groups = ("conv2d", int(a.get("group", 1))) if sides == 2 else ("conv1d", int(a.get("group", 1)))
        flat = sizes if sides == 2 else {key: value[0] for key, value in sizes.items()}
        node.give(name, [node.value()], {**flat, "groups": groups}, tensors)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.convolution(node)


def convolution(
    weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Traced:
    """A convolution by PyTorch's arguments after the first; of sequences as of images."""
    gaps = as_pair(dilation)
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(gaps[-len(weight.shape) + 2 :], weight.shape[2:], strict=True)]
        if any(span % 2 for span in spans):
            raise Untraceable("a 'same' convolution of an even kernel pads unevenly")
        padding = [span // 2 for span in spans]
    around = [0, 0] if padding == "valid" else as_pair(padding)
    sizes = {"stride": as_pair(stride), "padding": around, "dilation": gaps, "groups": groups}
    return Traced(sizes, present(weight=weight, bias=bias))


OPERATION = Conv2d()
