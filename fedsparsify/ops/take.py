"""Values of a sample by their numbers along one dimension, as relative position biases are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, whole
from .constant import MOST


def _numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and 1 <= len(value) <= MOST and all(whole(item, 0) for item in value)


class Take(Operation):
    """`numbers` along the dimension `axis`, which counts the batch; in the engine, of constant values alone."""

    name, sized = "take", True
    attributes = {"axis": lambda value: whole(value, 1), "numbers": _numbers}

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        axis, numbers, source = node.attributes["axis"] - 1, node.attributes["numbers"], inputs[0]
        if source is None:
            return None
        if axis >= len(source):
            raise ModelError(f"it takes values along dimension {axis + 1}. Received: samples of shape {source}.")
        side = source[axis]
        if side is not None and max(numbers) >= side:
            raise ModelError(f"it takes value {max(numbers)} of dimension {axis + 1}. Received: shape {source}.")
        return (*source[:axis], len(numbers), *source[axis + 1 :])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.asarray(np.take(x[0], attributes["numbers"], attributes["axis"]))

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        numbers = functional.torch.tensor(attributes["numbers"], device=x[0].device)
        return x[0].index_select(attributes["axis"], numbers)

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        numbers = onnx.constant(f"{node.output}.numbers", np.array(node.attributes["numbers"], np.int64))
        onnx.emit("Gather", node, numbers, axis=node.attributes["axis"])

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        raise ModelError("the engine takes values by their numbers from constants only.")


OPERATION = Take()
