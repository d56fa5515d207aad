"""Values that every sample has alike, written out in the graph: masks of attention, factors."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Sequence
from math import prod
from typing import Any
from zlib import compress, decompressobj
from zlib import error as ZlibError

import numpy as np

from ..errors import ModelError
from ..graph import Node
from .base import Attributes, Floats, FrontEnd, Onnx, Operation, Shape, Tensors, whole

MOST = 1 << 24  # values


def _sides(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= 32
        and all(whole(item, 1) for item in value)
        and prod(value) <= MOST
    )


class Constant(Operation):
    """`data`: the values as float32, little-endian, deflated, in base 64."""

    name, inputs, sized = "constant", 0, True
    attributes = {"shape": _sides, "data": lambda value: isinstance(value, str)}

    def check(self, node: Node, tensors: Any) -> None:
        """The data are as many finite values as the shape has, or infinite ones."""
        values_of(node.attributes)

    def shape(self, node: Node, inputs: Sequence[Shape], tensors: Any) -> Shape:
        """Shape of the result."""
        return tuple(node.attributes["shape"])

    def reference(self, x: Sequence[Floats], tensors: Tensors, attributes: Attributes) -> Floats:
        """The result in numpy, for a batch of one, which is every sample's."""
        return values_of(attributes)[None]

    def torch(self, functional: Any, x: Sequence[Any], tensors: Tensors, attributes: Attributes) -> Any:
        """The result by torch."""
        return functional.torch.from_numpy(values_of(attributes)[None].copy())

    def onnx(self, node: Node, onnx: Onnx) -> None:
        """Write the ONNX form."""
        onnx.emit("Identity", node, onnx.constant(f"{node.output}.value", values_of(node.attributes)[None]))

    def lower(self, node: Node, engine: FrontEnd) -> None:
        """Say what the engine is to compute."""
        engine.constant(node, values_of(node.attributes))


def attributes_of(values: Any) -> dict[str, Any]:
    """The attributes that hold some values."""
    array = np.ascontiguousarray(values, "<f4")
    if array.size > MOST:
        raise ModelError(f"a constant of a graph has at most {MOST:,} values. Received: {array.size:,}.")
    return {"shape": list(np.shape(values)), "data": b64encode(compress(array.tobytes(), 9)).decode()}


def values_of(attributes: Attributes) -> Floats:
    """The values, of their shape; ModelError where the data are not as many."""
    size = 4 * prod(attributes["shape"])
    try:
        reader = decompressobj()
        data = reader.decompress(b64decode(attributes["data"], validate=True), size + 1)
    except (Error, ValueError, ZlibError) as error:
        raise ModelError(f"its data cannot be read: {error}.") from None
    if len(data) != size or not reader.eof:
        raise ModelError(f"its data are not {size:,} bytes, as its shape says.")
    made = np.frombuffer(data, "<f4").astype(np.float32).reshape(attributes["shape"])
    if np.isnan(made).any():
        raise ModelError("its data are not numbers.")
    return made


OPERATION = Constant()
