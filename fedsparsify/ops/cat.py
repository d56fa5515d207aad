"""Values one after another along their channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, Traced, Untraceable


class Cat(Operation):
    """The concatenation of values that agree in all other sides; of the channels alone, as the engine computes it."""

    name, inputs = "cat", None
    functions = {"cat": "read_call", "concat": "read_call", "concatenate": "read_call"}

    def read_call(self, dim: int = 0) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if dim != 1:
            raise Untraceable(f"a graph concatenates channels, dimension 1. Received: {dim}")
        return Traced()

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        known = [shape for shape in inputs if shape is not None]
        if not known:
            return None
        for others in zip(*(shape[1:] for shape in known), strict=False):
            if len({side for side in others if side is not None}) > 1:
                raise ModelError(f"it concatenates values of shapes {', '.join(map(str, inputs))}.")
        if len({len(shape) for shape in known}) > 1:
            raise ModelError(f"it concatenates values of shapes {', '.join(map(str, inputs))}.")
        sides = [next((side for side in others if side is not None), None) for others in zip(*known, strict=True)]
        channels = [shape[0] for shape in known if shape[0] is not None]
        return (sum(channels) if len(channels) == len(inputs) else None, *sides[1:])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.concatenate(x, 1)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch, whose `cat` is no function of torch.nn.functional."""
        return functional.torch.cat(list(x), 1)

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Concat", node, axis=1)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.concatenate(node)


OPERATION = Cat()
