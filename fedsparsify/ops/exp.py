"""e to the x."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Attributes, Floats, Tensors


class Exp(Activation):
    """e to the x."""

    name, onnx_name = "exp", "Exp"
    onnx_nodes = {"Exp": "read_onnx"}
    functions = {"exp": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        with np.errstate(all="ignore"):
            return np.exp(x)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].exp()

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        exponential = m.exponential
        return lambda x, slope: exponential(x)


OPERATION = Exp()
