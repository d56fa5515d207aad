"""The largest value of each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, OnnxNode, Tensors, Traced, Untraceable, as_pair
from .pool import Pool
from .windows import padded, sliding


class MaxPool2d(Pool):
    """What lies outside of the image never is the largest."""

    name, windowed = "max_pool2d", True
    onnx_nodes = {"MaxPool": "read_onnx", "GlobalMaxPool": "read_global"}
    modules, functions = ("MaxPool2d",), {"max_pool2d": "read_call"}

    def read_module(self, module: Any) -> Traced:
        """What a module of PyTorch's does."""
        sizes = (module.kernel_size, module.stride, module.padding, module.dilation)
        return self.read_call(*sizes, module.ceil_mode, module.return_indices)

    def read_call(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Traced:
        """What a function or method does, by its arguments after the first."""
        if as_pair(dilation) != [1, 1] or return_indices:
            raise Untraceable("a graph knows max pooling without dilation and indices")
        return Traced(self.sizes(kernel_size, stride, padding, ceil_mode))

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy."""
        a, over = attributes, self.overhang(x[0].shape[1:], attributes)
        given = padded(x[0], a["padding"], over, -np.inf)
        return sliding(given, a["kernel"], a["stride"]).max((4, 5))  # type: ignore[no-any-return]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch.nn.functional."""
        a = attributes
        return functional.max_pool2d(x[0], a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil"])

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form.

        Its own ceil_mode keeps windows that lie in the padding alone, which PyTorch leaves out, and runtimes differ.
        """
        a, over = node.attributes, self.overhang(onnx.shapes[node.inputs[0]], node.attributes)
        pads = [*a["padding"], *(p + o for p, o in zip(a["padding"], over, strict=True))]
        onnx.emit("MaxPool", node, kernel_shape=a["kernel"], strides=a["stride"], pads=pads)

    def read_onnx(self, node: OnnxNode) -> None:
        """Read the ONNX form."""
        node.give(self.name, [node.value()], self.onnx_sizes(node))

    def read_global(self, node: OnnxNode) -> None:
        """Read the ONNX form of the largest value of an image."""
        window = list(node.shape()[1:])
        node.give(self.name, [node.value()], self.sizes(window, window, 0, False))

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.pool(node, mean=False)


OPERATION = MaxPool2d()
