"""The matrix product of two values along their last two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, expect


class MatMul(Operation):
    """(…, m, k) · (…, k, n); the dimensions before are equal, or 1 where the value is repeated."""

    name, inputs, sized = "matmul", 2, True

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        first, second = inputs
        if first is None or second is None:
            return None
        if len(first) != len(second) or len(first) < 2:
            raise ModelError(f"it multiplies matrices of shapes {first} and {second}.")
        if first[-1] is not None:
            expect(second[-2], first[-1], "rows")
        sides = []
        for a, b in zip(first[:-2], second[:-2], strict=True):
            if None not in (a, b) and a != b and 1 not in (a, b):
                raise ModelError(f"it multiplies matrices of shapes {first} and {second}.")
            sides.append(None if a is None or b is None else max(a, b))
        return (*sides, first[-2], second[-1])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.matmul(x[0], x[1])  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0] @ x[1]

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("MatMul", node)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.matmul(node)


OPERATION = MatMul()
