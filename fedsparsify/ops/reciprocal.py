"""1 / x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Attributes, Floats, Tensors


class Reciprocal(Activation):
    """1 / x."""

    name, onnx_name = "reciprocal", "Reciprocal"
    onnx_nodes = {"Reciprocal": "read_onnx"}
    functions = {"reciprocal": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        with np.errstate(all="ignore"):
            return np.float32(1) / x

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].reciprocal()

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        f32 = m.f32
        return lambda x, slope: f32(1) / x


OPERATION = Reciprocal()
