"""The square root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Attributes, Floats, Tensors


class Sqrt(Activation):
    """The square root."""

    name, onnx_name = "sqrt", "Sqrt"
    onnx_nodes = {"Sqrt": "read_onnx"}
    functions = {"sqrt": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        with np.errstate(all="ignore"):
            return np.sqrt(x)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].sqrt()

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        root = m.root
        return lambda x, slope: root(x)


OPERATION = Sqrt()
