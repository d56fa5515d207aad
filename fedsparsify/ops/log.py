"""The natural logarithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .activation import Activation, Arithmetic
from .base import Attributes, Floats, Tensors


class Log(Activation):
    """The natural logarithm."""

    name, onnx_name = "log", "Log"
    onnx_nodes = {"Log": "read_onnx"}
    functions = {"log": "read_call"}

    @staticmethod
    def formula(x: Floats) -> Any:
        """In numpy."""
        with np.errstate(all="ignore"):
            return np.log(x)

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].log()

    @staticmethod
    def kernel(m: Arithmetic) -> Callable[[Any, Any], Any]:
        """For the engine."""
        logarithm = m.logarithm
        return lambda x, slope: logarithm(x)


OPERATION = Log()
