"""Every so manieth of a sample's values along one dimension, from one on up to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, whole


class Slice(Operation):
    """Values `start`, `start + step`, … below `stop`, along the dimension `axis`, which counts the batch."""

    name, view, sized = "slice", True, True
    onnx_nodes = {"Slice": "read_onnx"}
    attributes = {
        "axis": lambda value: whole(value, 1),
        "start": lambda value: whole(value, 0),
        "stop": lambda value: whole(value, 1),
        "step": lambda value: whole(value, 1),
    }

    def check(self, node: Node, tensors: Any) -> None:
        """Something is left."""
        if node.attributes["stop"] <= node.attributes["start"]:
            raise ModelError(f"it takes nothing: {node.attributes['start']} up to {node.attributes['stop']}.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        a, source = node.attributes, inputs[0]
        if source is None:
            return None
        axis = a["axis"] - 1
        if axis >= len(source):
            raise ModelError(f"it slices dimension {a['axis']}. Received: samples of shape {source}.")
        side = source[axis]
        if side is not None and a["stop"] > side:
            raise ModelError(f"it slices up to {a['stop']} of dimension {a['axis']}. Received: shape {source}.")
        return (*source[:axis], -(-(a["stop"] - a["start"]) // a["step"]), *source[axis + 1 :])

    @staticmethod
    def _taken(a: Attributes) -> tuple[slice, ...]:
        return (*[slice(None)] * a["axis"], slice(a["start"], a["stop"], a["step"]))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return x[0][self._taken(attributes)]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0][self._taken(attributes)]

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        names = [
            onnx.constant(f"{node.output}.{name}", np.array([node.attributes[name]], np.int64))
            for name in ("start", "stop", "axis", "step")
        ]
        onnx.emit("Slice", node, *names)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form: one node per dimension that is cut."""
        starts, stops, shape = node.needed(1, "starts"), node.needed(2, "ends"), node.shape()
        axes = node.needed(3, "axes") if node.count > 3 else range(len(starts))
        steps = node.needed(4, "steps") if node.count > 4 else [1] * len(starts)
        cuts = []
        for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
            place = int(axis) % (len(shape) + 1)
            if place == 0 or step < 1:
                raise node.refuse("a graph slices neither the batch nor backwards")
            first, last, _ = slice(int(start), int(stop), int(step)).indices(shape[place - 1])
            cuts.append({"axis": place, "start": first, "stop": last, "step": int(step)})
        value = node.value()
        for cut in cuts[:-1]:
            value = node.between(self.name, [value], cut)
        node.give(self.name, [value], cuts[-1])

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.slice(node)


OPERATION = Slice()
