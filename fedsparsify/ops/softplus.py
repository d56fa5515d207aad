"""log(1 + exp(x)), a smooth ReLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Floats, Traced, Untraceable


class Softplus(Activation):
    """max(x, 0) + log(1 + exp(-|x|))."""

    name, onnx_name = "softplus", "Softplus"
    onnx_nodes = {"Softplus": "read_onnx"}
    modules, functions = ("Softplus",), {"softplus": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.beta, module.threshold)

    def read_call(self, beta: float = 1, threshold: float = 20) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if beta != 1 or threshold < 16:  # above which it is x in float32
            raise Untraceable("a graph knows softplus of beta 1 with the usual threshold")
        return Traced()

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        return np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        exponential, logarithm, f32 = m.bounded_exponential, m.logarithm, m.f32
        return lambda x, slope: max(x, f32(0)) + logarithm(f32(1) + exponential(min(x, -x)))


OPERATION = Softplus()
