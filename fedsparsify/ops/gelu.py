"""x · Φ(x) with the normal distribution function Φ, exact (Hendrycks and Gimpel, 2016)."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Floats, OnnxNode, Traced, Untraceable

_erf = np.vectorize(erf, otypes=[np.float64])


class GELU(Activation):
    """The exact form; PyTorch's approximation by tanh is another function."""

    name, onnx_name = "gelu", "Gelu"
    onnx_nodes = {"Gelu": "read_onnx"}
    modules, functions = ("GELU",), {"gelu": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_call(module.approximate)

    def read_call(self, approximate: Any = "none") -> Traced:
        """What a function or method does, by its arguments after the first."""
        if approximate != "none":
            raise Untraceable(f"a graph knows the exact gelu. Received: approximate={approximate!r}")
        return Traced()

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        if node.attributes.get("approximate", "none") != "none":
            raise node.refuse("a graph knows the exact gelu")
        node.give(self.name, [node.value()])

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        return x * 0.5 * (1 + _erf(x.astype(np.float64) / np.sqrt(2)))

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        error_function, f32 = m.error_function, m.f32
        return lambda x, slope: x * f32(0.5) * (f32(1) + error_function(x * f32(0.7071067811865476)))


OPERATION = GELU()
