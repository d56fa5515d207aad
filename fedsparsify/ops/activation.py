"""Functions of each value alone, with a kernel of their own in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Tensors


class Arithmetic(Protocol):
    """What a kernel may use: float32 constants, and functions that call no library."""

    f32: Callable[[float], Any]
    exponential: Callable[[Any], Any]
    bounded_exponential: Callable[[Any], Any]  # faster, from 2^-126 to 2^126
    tangent: Callable[[Any], Any]  # hyperbolic
    error_function: Callable[[Any], Any]
    logarithm: Callable[[Any], Any]  # natural
    root: Callable[[Any], Any]  # square


class Activation(Operation):
    """A function of one value. `kernel` makes the scalar function that numba compiles into the engine."""

    pointwise = True
    onnx_name: ClassVar[str] = ""

    @staticmethod
    def formula(x: Floats) -> Any:
        """The function in numpy."""
        raise NotImplementedError

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """The function of a float32 value and the node's slope, in plain arithmetic."""
        raise NotImplementedError

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        return np.asarray(self.formula(x[0]), np.float32)

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.activation(node)

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit(self.onnx_name, node)
