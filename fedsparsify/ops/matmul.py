"""The matrix product of two values along their last two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Shape, Tensors, expect
from .constant import MOST, attributes_of
from .resizing import weights_of


class MatMul(Operation):
    """(…, m, k) · (…, k, n); the dimensions before are equal, or 1 where the value is repeated."""

    name, inputs, sized = "matmul", 2, True
    onnx_nodes = {"Resize": "read_resize"}

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

    def read_resize(self, node: OnnxNode) -> None:
        """Read the ONNX form of an image of another size: products with the weights of rows and of columns."""
        sides, a = (1, *node.shape()), node.attributes
        scales, sizes = node.constant(2), node.constant(3)
        if sizes is not None and len(sizes) == len(sides) == 4:
            target = [int(size) for size in sizes]
            target[0], factors = 1, [new / old for new, old in zip(target, sides, strict=True)]
        elif scales is not None and len(scales) == len(sides) == 4 and np.isfinite(scales).all():
            factors = [float(scale) for scale in scales]
            target = [int(side * factor) for side, factor in zip(sides, factors, strict=True)]
        else:
            raise node.refuse("a graph knows images that are resized to constant sizes or by constant factors")
        if target[:2] != list(sides[:2]) or min(target) < 1 or any(a.get(name) for name in ("antialias", "axes")):
            raise node.refuse("a graph knows resized rows and columns, without antialias")
        made = []
        for side, out, factor in list(zip(sides, target, factors, strict=True))[2:]:
            if side * out > MOST:
                raise node.refuse(f"it makes {out:,} pixels of {side:,}")
            found = weights_of(side, out, factor, a)
            if found is None:
                raise node.refuse("a graph knows nearest and linear interpolation in the usual coordinates")
            made.append(found)
        rows, columns = (node.between("constant", [], attributes_of(w[None])) for w in (made[0], made[1].T))
        node.give(self.name, [rows, node.between(self.name, [node.value(), columns], {})])

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.matmul(node)


OPERATION = MatMul()
