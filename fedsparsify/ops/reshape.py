"""Some neighbouring dimensions of a sample as others of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, whole


def _sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 32 and all(whole(item, 1) for item in value)


class Reshape(Operation):
    """The dimensions from `start` up to `end`, which count the batch, become `sizes`; all others stay."""

    name, view, sized = "reshape", True, True
    onnx_nodes = {"Reshape": "read_onnx", "Squeeze": "read_axes", "Unsqueeze": "read_axes"}
    attributes = {"start": lambda value: whole(value, 1), "end": lambda value: whole(value, 1), "sizes": _sizes}

    def check(self, node: Node, tensors: Any) -> None:
        """The dimensions are in order."""
        a = node.attributes
        if a["end"] < a["start"]:
            raise ModelError(f"it reshapes dimensions {a['start']} up to {a['end']}.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        a, source = node.attributes, inputs[0]
        if source is None:
            return None
        start, end = a["start"] - 1, a["end"] - 1
        old = source[start:end]
        if end > len(source) or (None not in old and prod(old) != prod(a["sizes"])):  # type: ignore[arg-type]
            message = f"it reshapes dimensions {start + 1} up to {end + 1} to {list(a['sizes'])}"
            raise ModelError(f"{message}. Received: samples of shape {source}.")
        return (*source[:start], *a["sizes"], *source[end:])

    def _whole(self, shape: Sequence[int], a: Attributes) -> tuple[int, ...]:
        return (*shape[: a["start"]], *a["sizes"], *shape[a["end"] :])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0].reshape(self._whole(x[0].shape, attributes))

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].reshape(self._whole(x[0].shape, attributes))

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form. 0 keeps the batch."""
        shape = np.array([0, *onnx.shapes[node.output]], np.int64)
        onnx.emit("Reshape", node, onnx.constant(f"{node.output}.shape", shape))

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form, whose first side must be the batch."""
        sides, old = [int(side) for side in node.needed(1, "shape")], node.shape()
        if not sides or sides[0] not in (0, -1, node.batch) or (sides[0] == -1 and -1 in sides[1:]):
            raise node.refuse(f"a graph keeps the batch as the first dimension. Received: {sides}")
        new = [old[k] if side == 0 else side for k, side in enumerate(sides[1:])]
        if -1 in new:
            new[new.index(-1)] = prod(old) // max(prod(side for side in new if side != -1), 1)
        self._give_whole(node, new)

    def read_axes(self, node: OnnxNode) -> None:
        """Read Squeeze and Unsqueeze; older models have the axes as an attribute."""
        given = node.constant(1) if node.count > 1 else node.attributes.get("axes")
        old = list(node.shape())
        rank = len(old) + 1 + (len(given) if node.op == "Unsqueeze" and given is not None else 0)
        axes = [k + 1 for k, side in enumerate(old) if side == 1] if given is None else [int(a) % rank for a in given]
        if 0 in axes:
            raise node.refuse("a graph keeps the batch as the first dimension")
        if node.op == "Squeeze":
            self._give_whole(node, [side for k, side in enumerate(old) if k + 1 not in axes])
            return
        for axis in sorted(axes):
            old.insert(axis - 1, 1)
        self._give_whole(node, old)

    def _give_whole(self, node: OnnxNode, new: Sequence[int]) -> None:
        rank = len(node.shape())
        if len(new) == 1:
            node.give("flatten", [node.value()], {"start": 1})
        else:
            node.give(self.name, [node.value()], {"start": 1, "end": rank + 1, "sizes": list(new)})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.reshape(node)


OPERATION = Reshape()
