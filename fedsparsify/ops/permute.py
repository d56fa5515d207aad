"""The dimensions of a sample in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, whole


def _order(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(whole(item, 1) for item in value)
        and sorted(value) == list(range(1, len(value) + 1))
    )


class Permute(Operation):
    """`order` counts the batch, which stays the first dimension and is left out."""

    name, view, sized = "permute", True, True
    onnx_nodes = {
        "Transpose": "read_onnx",
        "DepthToSpace": "read_depth_to_space",
        "SpaceToDepth": "read_space_to_depth",
    }
    attributes = {"order": _order}

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        order, source = node.attributes["order"], inputs[0]
        if source is None:
            return (None,) * len(order)
        if len(source) != len(order):
            raise ModelError(f"it orders {len(order)} dimensions. Received: samples of shape {source}.")
        return tuple(source[k - 1] for k in order)

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.ascontiguousarray(x[0].transpose(0, *attributes["order"]))

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].permute(0, *attributes["order"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Transpose", node, perm=[0, *node.attributes["order"]])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        order = list(node.attributes.get("perm", []))
        if not order or order[0] != 0:
            raise node.refuse("a graph keeps the batch as the first dimension")
        node.give(self.name, [node.value()], {"order": order[1:]})

    def read_depth_to_space(self, node: OnnxNode) -> None:
        """Read the ONNX form of channels that become pixels."""
        (channels, height, width), size = node.shape(), self._block(node)
        if node.attributes.get("mode", "DCR") == "CRD":
            apart, order = [channels // size**2, size, size, height, width], [1, 4, 2, 5, 3]
        else:
            apart, order = [size, size, channels // size**2, height, width], [3, 4, 1, 5, 2]
        self._moved(node, apart, order, [channels // size**2, height * size, width * size])

    def read_space_to_depth(self, node: OnnxNode) -> None:
        """Read the ONNX form of pixels that become channels."""
        (channels, height, width), size = node.shape(), self._block(node)
        apart = [channels, height // size, size, width // size, size]
        self._moved(node, apart, [3, 5, 1, 2, 4], [channels * size**2, height // size, width // size])

    @staticmethod
    def _block(node: OnnxNode) -> int:
        size = int(node.attributes["blocksize"])
        if size < 1:
            raise node.refuse(f"its blocksize must be at least 1. Received: {size}")
        return size

    def _moved(self, node: OnnxNode, apart: list[int], order: list[int], sides: list[int]) -> None:
        value = node.between("reshape", [node.value()], {"start": 1, "end": 4, "sizes": apart})
        value = node.between(self.name, [value], {"order": order})
        node.give("reshape", [value], {"start": 1, "end": 6, "sizes": sides})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.permute(node)


OPERATION = Permute()
