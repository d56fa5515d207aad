"""Some neighbouring dimensions of a sample as others of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, whole


def _sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 32 and all(whole(item, 1) for item in value)


class Reshape(Operation):
    """The dimensions from `start` up to `end`, which count the batch, become `sizes`; all others stay."""

    name, view, sized = "reshape", True, True
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

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.reshape(node)


OPERATION = Reshape()
