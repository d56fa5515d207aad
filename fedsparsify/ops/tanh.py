"""The hyperbolic tangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Floats


class Tanh(Activation):
    """tanh(x)."""

    name, onnx_name = "tanh", "Tanh"
    onnx_nodes = {"Tanh": "read_onnx"}
    modules, functions = ("Tanh",), {"tanh": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        return np.tanh(x)

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        tangent = m.tangent
        return lambda x, slope: tangent(x)


OPERATION = Tanh()
