"""All of a state dict: the model's tensors, further names of one, and buffers that are not floats.

Training changes and sends float tensors only. A file's `state` has the rest, so that an export can be loaded with
`load_state_dict(strict=True)`.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import prod

import numpy as np

from ..errors import ModelError, WireError
from ..model import SparseModel

KINDS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
MOST = 1 << 20  # bytes of text that a file's header spends on one buffer
MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"


def whole_state(model: SparseModel, facts: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Every entry of the network's state dict that the file knows.

    A file without `state` has the model's tensors only; batch norms, recognised by their statistics, get a counter.
    """
    tensors: dict[str, np.ndarray] = {name: array.copy() for name, array in model.host_tensors().items()}
    match facts.get("state"):
        case None:
            norms = [name.removesuffix(MEAN) for name in tensors if name.endswith(MEAN)]
            counted = [norm for norm in norms if f"{norm}{VARIANCE}" in tensors]
            return tensors | {f"{norm}{COUNT}": np.zeros((), np.int64) for norm in counted}
        case {"aliases": dict() as aliases, "buffers": dict() as buffers, "missing": list() as missing}:
            pass
        case other:
            raise WireError(f"a file's state has aliases, buffers and missing names. Received: {str(other)[:80]}")
    if missing:
        raise ModelError(
            f"the file does not hold {str(missing[0])!r} of the network's state dict: it is neither a float32 tensor "
            f"nor a small buffer of integers. Register it with persistent=False."
        )
    for name, target in aliases.items():
        if name in tensors or not isinstance(target, str) or target not in tensors:
            raise WireError(f"{name!r} cannot be another name of {str(target)[:80]!r}.")
    found = {name: tensors[target].copy() for name, target in aliases.items()}
    found |= {name: _unpacked(name, value) for name, value in buffers.items() if name not in tensors}
    return tensors | found


def packed(array: np.ndarray) -> str:
    """A buffer's bytes as text."""
    return b64encode(zlib.compress(array.astype(array.dtype.newbyteorder("<")).tobytes())).decode()


def _unpacked(name: str, value: object) -> np.ndarray:
    match value:
        case [str() as kind, list() as shape, str() as data] if kind in KINDS and all(type(n) is int for n in shape):
            pass
        case _:
            raise WireError(f"the buffer {name!r} must be a type, a shape and its bytes. Received: {str(value)[:80]}")
    size = prod(shape) * np.dtype(kind).itemsize
    if len(shape) > 32 or any(n < 0 for n in shape) or size > MOST << 10:
        raise WireError(f"the buffer {name!r} cannot have the shape {str(shape)[:80]}.")
    try:
        content = zlib.decompressobj().decompress(b64decode(data, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise WireError(f"the bytes of the buffer {name!r} are damaged: {error}.") from error
    if len(content) != size:
        raise WireError(f"the buffer {name!r} of shape {shape} has {size:,} bytes. Received: another number.")
    return np.frombuffer(content, np.dtype(kind).newbyteorder("<")).astype(kind).reshape(shape)
