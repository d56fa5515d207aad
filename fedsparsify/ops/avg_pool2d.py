"""The mean of each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Tensors, Traced, Untraceable, truth
from .pool import Pool
from .windows import padded, sliding


class AvgPool2d(Pool):
    """The mean counts the padding where `count_padding` says so, but never what lies beyond it."""

    name, windowed = "avg_pool2d", True
    onnx_nodes = {"AveragePool": "read_onnx"}
    attributes = {**Pool.attributes, "count_padding": truth}
    modules, functions = ("AvgPool2d",), {"avg_pool2d": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        window = (module.kernel_size, module.stride, module.padding)
        return self.read_call(*window, module.ceil_mode, module.count_include_pad, module.divisor_override)

    def read_call(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if divisor_override is not None:
            raise Untraceable("a graph knows average pooling without a divisor of its own")
        counted = {"count_padding": bool(count_include_pad)}
        return Traced({**self.sizes(kernel_size, stride, padding, ceil_mode), **counted})

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        a, over = attributes, self.overhang(x[0].shape[1:], attributes)
        window = a["kernel"], a["stride"]
        sums = sliding(padded(x[0], a["padding"], over, 0), *window).sum((4, 5))
        ones = np.ones((1, 1, *x[0].shape[2:]), np.float32)
        inside = padded(ones, a["padding"], (0, 0), 1) if a["count_padding"] else padded(ones, a["padding"], (0, 0), 0)
        counted = sliding(padded(inside, (0, 0), over, 0), *window).sum((4, 5))
        return sums / counted  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        a = attributes
        return functional.avg_pool2d(x[0], a["kernel"], a["stride"], a["padding"], a["ceil"], a["count_padding"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form; as with MaxPool, without its ceil_mode."""
        a, over = node.attributes, self.overhang(onnx.shapes[node.inputs[0]], node.attributes)
        window = {"kernel_shape": a["kernel"], "strides": a["stride"]}
        if not a["count_padding"]:
            pads = [*a["padding"], *(p + o for p, o in zip(a["padding"], over, strict=True))]
            onnx.emit("AveragePool", node, **window, pads=pads)
        elif not any(over):
            onnx.emit("AveragePool", node, **window, pads=[*a["padding"]] * 2, count_include_pad=1)
        else:
            amounts = onnx.constant(f"{node.output}.pads", np.array([0, 0, *a["padding"]] * 2, np.int64))
            given = onnx.between("Pad", [node.inputs[0], amounts], f"{node.output}.padded")
            onnx.between("AveragePool", [given], node.output, **window, pads=[0, 0, *over])

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        node.give(
            self.name,
            [node.value()],
            {**self.onnx_sizes(node), "count_padding": bool(node.attributes.get("count_include_pad", 0))},
        )

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.pool(node, mean=True)


OPERATION = AvgPool2d()
