"""Functions of two values that repeat sides of one: what sums and products have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ModelError
from ..graph import Node
from .base import VALUE, Operation, Shape, Traced, Untraceable


class Broadcast(Operation):
    """Values of as many dimensions; where one has a side of 1, its values are repeated along it."""

    inputs = 2
    verb = "combines"

    def read_call(self, other: Any, **more: Any) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if other is not VALUE or more:
            raise Untraceable(f"a graph {self.verb} two values of the network")
        return Traced()

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        first, second = inputs
        if first is None or second is None:
            return None
        if len(first) != len(second):
            raise ModelError(f"it {self.verb} values of shapes {first} and {second}.")
        sides = []
        for a, b in zip(first, second, strict=True):
            if None not in (a, b) and a != b and 1 not in (a, b):
                raise ModelError(f"it {self.verb} values of shapes {first} and {second}.")
            sides.append(None if a is None or b is None else max(a, b))
        return tuple(sides)
