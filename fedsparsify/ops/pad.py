"""A sample with a border of one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, number, whole


def _amounts(value: Any) -> bool:
    return isinstance(value, list | tuple) and 1 <= len(value) <= 32 and all(whole(item, 0) for item in value)


class Pad(Operation):
    """So many more before and after each dimension of the sample."""

    name, sized = "pad", True
    onnx_nodes = {"Pad": "read_onnx"}
    attributes = {"before": _amounts, "after": _amounts, "value": number}

    def check(self, node: Node, tensors: Any) -> None:
        """Both ends are given for each dimension."""
        before, after = node.attributes["before"], node.attributes["after"]
        if len(before) != len(after):
            raise ModelError(f"it pads {len(before)} dimensions before, and {len(after)} after.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        before, after, source = node.attributes["before"], node.attributes["after"], inputs[0]
        if source is None:
            return (None,) * len(before)
        if len(source) != len(before):
            raise ModelError(f"it pads {len(before)} dimensions. Received: samples of shape {source}.")
        sides = zip(source, before, after, strict=True)
        return tuple(None if side is None else a + side + b for side, a, b in sides)

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        amounts = [(0, 0), *zip(attributes["before"], attributes["after"], strict=True)]
        return np.pad(x[0], amounts, constant_values=attributes["value"])

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional, which counts from the last dimension."""
        ends = zip(reversed(attributes["before"]), reversed(attributes["after"]), strict=True)
        return functional.pad(x[0], [amount for both in ends for amount in both], value=attributes["value"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        a = node.attributes
        amounts = onnx.constant(f"{node.output}.pads", np.array([0, *a["before"], 0, *a["after"]], np.int64))
        onnx.emit("Pad", node, amounts, onnx.constant(f"{node.output}.value", np.float32(a["value"])))

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        amounts = [int(amount) for amount in node.needed(1, "pads")]
        half, value = len(amounts) // 2, node.constant(2)
        mode = node.attributes.get("mode", "constant")
        if mode != "constant" or amounts[0] or amounts[half] or min(amounts, default=0) < 0 or node.count > 3:
            raise node.refuse("a graph pads the sides of a sample with a constant")
        fill = 0.0 if value is None else float(np.asarray(value).reshape(-1)[0])
        attributes = {"before": amounts[1:half], "after": amounts[half + 1 :], "value": fill}
        node.give(self.name, [node.value()], attributes)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.pad(node)


OPERATION = Pad()
