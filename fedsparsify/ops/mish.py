"""x · tanh(log(1 + exp(x))) (Misra, 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Floats


class Mish(Activation):
    """x · n / (n + 2), where n = exp(x) · (exp(x) + 2); from 20 on it is x."""

    name, onnx_name = "mish", "Mish"
    onnx_nodes = {"Mish": "read_onnx"}
    modules, functions = ("Mish",), {"mish": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        e = np.exp(np.minimum(x, np.float32(20)))
        n = e * (e + np.float32(2))
        return x * (n / (n + np.float32(2)))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        exponential, f32 = m.bounded_exponential, m.f32

        def mish(x: Any, slope: Any) -> Any:
            e = exponential(f32(20) if x > f32(20) else x)
            n = e * (e + f32(2))
            return x * (n / (n + f32(2)))

        return mish


OPERATION = Mish()
