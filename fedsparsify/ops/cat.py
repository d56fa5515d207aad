"""Values one after another along a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, Traced, Untraceable, whole


class Cat(Operation):
    """The concatenation of values that agree in all other sides, along `axis`, which counts the batch."""

    name, inputs, sized = "cat", None, True
    onnx_nodes = {"Concat": "read_onnx"}
    attributes = {"axis": lambda value: whole(value, 1)}
    optional_attributes = frozenset(attributes)  # older files know the axis of the channels alone
    functions = {"cat": "read_call", "concat": "read_call", "concatenate": "read_call"}

    def read_call(self, dim: int = 0) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if dim < 1:
            raise Untraceable(f"a graph concatenates along a dimension from 1 on. Received: {dim}")
        return Traced({"axis": dim})

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        known, axis = [shape for shape in inputs if shape is not None], _axis(node.attributes) - 1
        if not known:
            return None
        said = f"it concatenates values of shapes {', '.join(map(str, inputs))} along dimension {axis + 1}."
        if len({len(shape) for shape in known}) > 1 or axis >= len(known[0]):
            raise ModelError(said)
        sides = []
        for place, others in enumerate(zip(*known, strict=True)):
            given = [side for side in others if side is not None]
            if place == axis:
                sides.append(sum(given) if len(given) == len(inputs) else None)
            elif len(set(given)) > 1:
                raise ModelError(said)
            else:
                sides.append(given[0] if given else None)
        return tuple(sides)

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        batch = max(map(len, x))
        return np.concatenate([np.broadcast_to(part, (batch, *part.shape[1:])) for part in x], _axis(attributes))

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch, whose `cat` is no function of torch.nn.functional."""
        batch = max(map(len, x))
        return functional.torch.cat([part.expand(batch, *part.shape[1:]) for part in x], _axis(attributes))

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        axis, alike = _axis(node.attributes), [name for name in node.inputs if name in onnx.constants]
        if not alike or len(alike) == len(node.inputs):
            onnx.emit("Concat", node, axis=axis)
            return
        other = next(name for name in node.inputs if name not in onnx.constants)
        shape = onnx.between("Shape", [other], f"{node.output}.batch", start=0, end=1)
        inputs = []
        for place, name in enumerate(node.inputs):
            if name in onnx.constants:  # one for all samples, which Concat does not repeat
                sides = onnx.constant(f"{name}.sides", np.array(onnx.shapes[name], np.int64))
                target = onnx.between("Concat", [shape, sides], f"{node.output}.sides{place}", axis=0)
                name = onnx.between("Expand", [name, target], f"{node.output}.part{place}")
            inputs.append(name)
        onnx.between("Concat", inputs, node.output, axis=axis)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        rank = len(node.shape()) + 1
        node.give(self.name, [node.value(k) for k in range(node.count)], {"axis": int(node.attributes["axis"]) % rank})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.concatenate(node)


def _axis(attributes: Attributes) -> int:
    return int(attributes.get("axis", 1))


OPERATION = Cat()
