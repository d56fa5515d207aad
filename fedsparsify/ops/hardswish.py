"""x · min(max(x + 3, 0), 6) / 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Floats


class Hardswish(Activation):
    """SiLU by straight lines."""

    name, onnx_name = "hardswish", "HardSwish"
    onnx_nodes = {"HardSwish": "read_onnx"}
    modules, functions = ("Hardswish",), {"hardswish": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        return x * np.clip(x + np.float32(3), np.float32(0), np.float32(6)) / np.float32(6)

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        f32 = m.f32
        return lambda x, slope: x * min(max(x + f32(3), f32(0)), f32(6)) * f32(1 / 6)

    @staticmethod
    def vector(e: Any, x: Any) -> Any:
        """The same of a vector, for the engine's convolutions, by an emitter of vector code."""
        factor = e.clamp(e.builder.fadd(x, e.constant(3.0)), e.constant(0.0), e.constant(6.0))
        return e.builder.fmul(e.builder.fmul(x, factor), e.constant(float(np.float32(1 / 6))))


OPERATION = Hardswish()
