"""1 / (1 + exp(-x))."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Floats


class Sigmoid(Activation):
    """The logistic function."""

    name, onnx_name = "sigmoid", "Sigmoid"
    onnx_nodes = {"Sigmoid": "read_onnx"}
    modules, functions = ("Sigmoid",), {"sigmoid": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        with np.errstate(over="ignore"):
            return np.float32(1) / (np.float32(1) + np.exp(-x))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        exponential, f32 = m.bounded_exponential, m.f32
        return lambda x, slope: f32(1) / (f32(1) + exponential(-x))


OPERATION = Sigmoid()
