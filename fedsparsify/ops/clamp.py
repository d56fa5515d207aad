"""Values below and above two bounds are set to them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Operation, Tensors, Traced, Untraceable, number


def _bound(value: Any) -> bool:
    return value is None or number(value)


class Clamp(Operation):
    """min(max(x, low), high); None is no bound."""

    name = "clamp"
    onnx_nodes = {"Clip": "read_onnx"}
    pointwise = True
    attributes = {"low": _bound, "high": _bound}
    modules = ("Hardtanh",)
    functions = {
        **dict.fromkeys(("clamp", "clip"), "read_call"),
        "hardtanh": "read_hardtanh",
        "clamp_min": "read_call",
        "clamp_max": "read_most",
    }

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        return self.read_hardtanh(module.min_val, module.max_val, module.inplace)

    def read_call(self, min: Any = None, max: Any = None) -> Traced:
        """What a function or method does, by its arguments after the first."""
        bounds = {"low": min, "high": max}
        if not all(map(_bound, bounds.values())):
            raise Untraceable(f"a graph clamps to numbers. Received: {min!r}, {max!r}")
        return Traced({name: None if bound is None else float(bound) for name, bound in bounds.items()})

    def read_most(self, max: Any) -> Traced:
        """`clamp_max`, which has no lower bound."""
        return self.read_call(None, max)

    def read_hardtanh(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Traced:
        """`hardtanh`, whose bounds are -1 and 1 where it names none."""
        return Traced(self.read_call(min_val, max_val).attributes, in_place=bool(inplace))

    def check(self, node: Node, tensors: Any) -> None:
        """The bounds are in order."""
        low, high = _bounds(node.attributes)
        if low > high:
            raise ModelError(f"it clamps to at least {low} and at most {high}.")

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        low, high = _bounds(attributes)
        return np.clip(x[0], np.float32(low), np.float32(high))

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return x[0].clamp(*_bounds(attributes))

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        names = (
            "" if value is None else onnx.constant(f"{node.output}.{name}", np.float32(value))
            for name, value in ((name, node.attributes[name]) for name in ("low", "high"))
        )
        onnx.emit("Clip", node, *names)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form; older models have the bounds as attributes."""
        bounds = [node.constant(1), node.constant(2)] if node.count > 1 else [None, None]
        if node.count == 1:
            bounds = [node.attributes.get("min"), node.attributes.get("max")]
        low, high = (None if bound is None else float(np.asarray(bound).reshape(-1)[0]) for bound in bounds)
        node.give(self.name, [node.value()], {"low": low, "high": high})

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.clamp(node, *_bounds(node.attributes))


def _bounds(attributes: Attributes) -> tuple[float, float]:
    low, high = attributes["low"], attributes["high"]
    return -inf if low is None else float(low), inf if high is None else float(high)


OPERATION = Clamp()
