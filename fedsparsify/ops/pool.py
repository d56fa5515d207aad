"""What pools over windows have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, OnnxNode, Operation, Shape, as_pair, image, pair_of, truth
from .windows import counts, overhang


class Pool(Operation):
    """A pool of windows of one size."""

    attributes = {"kernel": pair_of(1), "stride": pair_of(1), "padding": pair_of(0), "ceil": truth}

    @staticmethod
    def sizes(kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
        """The attributes, from PyTorch's arguments."""
        window = {"kernel": as_pair(kernel), "stride": as_pair(kernel if stride in (None, (), []) else stride)}
        return {**window, "padding": as_pair(padding), "ceil": bool(ceil)}

    @staticmethod
    def onnx_sizes(node: OnnxNode) -> dict[str, Any]:
        """The attributes, from those of ONNX."""
        a = node.attributes
        pads, kernel = list(a.get("pads", [0] * 4)), list(a["kernel_shape"])
        if len(kernel) != 2 or pads[:2] != pads[2:] or list(a.get("dilations", [1, 1])) != [1, 1]:
            raise node.refuse("a graph knows pools of images, without dilation, padded alike on both sides")
        if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            raise node.refuse(f"a graph names its padding, not {a['auto_pad']!r}")
        sizes = {"kernel": kernel, "stride": list(a.get("strides", [1, 1])), "padding": pads[:2]}
        return {**sizes, "ceil": bool(a.get("ceil_mode", 0))}

    def check(self, node: Node, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Every window meets a pixel."""
        kernel, padding = node.attributes["kernel"], node.attributes["padding"]
        if any(2 * pad > side for pad, side in zip(padding, kernel, strict=True)):
            raise ModelError(f"its padding is more than half of its kernel {kernel}. Received: {padding}.")

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Mapping[str, tuple[int, ...]]) -> Shape:
        """Shape of the result."""
        channels, *sides = image(inputs[0], self.name)
        return (channels, *self._counts(sides, node.attributes))

    @staticmethod
    def _counts(sides: Sequence[Any], a: Attributes) -> tuple[Any, Any]:
        return counts(sides, a["kernel"], a["stride"], a["padding"], a["ceil"])

    def overhang(self, shape: Sequence[int], a: Attributes) -> list[int]:
        """By how much the last windows of an image (channels, height, width) go over its padding."""
        return overhang(shape[-2:], self._counts(shape[-2:], a), a["kernel"], a["stride"], a["padding"])
