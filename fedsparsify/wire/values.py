"""Values as bytes: numbers rotated so that the exponent comes first, cut into byte planes, one section per plane.

The exponents of a trained tensor take few values and compress to a few bits; mantissas are noise and stay raw.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import WireError
from ..model import Floats
from .binary import Reader, Writer

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8", "int8-channel"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)  # a precision's index is its byte on the wire
PIECE = 1 << 15  # values that stay in the cache


def write_values(writer: Writer, values: Floats, counts: NDArray[np.int64], precision: Precision) -> None:
    """Write the values of consecutive tensors, one count per tensor; no values take no bytes.

    The last precision needs more than counts: see channels.py.
    """
    if not values.size:
        return
    match precision:
        case "fp32":
            _write_planes(writer, values.view(np.uint32))
        case "fp16":
            with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes infinite; the receiver refuses it
                _write_planes(writer, values.astype(np.float16).view(np.uint16))
        case "bf16":
            _write_planes(writer, _to_brain(values))
        case "int8":
            scales = _scales(values, counts)
            writer.buffer += scales.astype("<f4").tobytes()
            steps = np.repeat(np.where(scales > 0, scales, np.float32(1)), counts)
            writer.section(np.clip(np.rint(values / steps), -127, 127).astype(np.int8).tobytes())
        case "int8-channel":
            raise WireError("values by channel are written by write_channels.")


def read_values(reader: Reader, counts: NDArray[np.int64], precision: Precision) -> Floats:
    """Float32 values of consecutive tensors."""
    if not counts.sum():
        return np.zeros(0, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # the receiver of the model refuses values that are not finite
        return _read_values(reader, counts, int(counts.sum()), precision)


def _read_values(reader: Reader, counts: NDArray[np.int64], count: int, precision: Precision) -> Floats:
    match precision:
        case "fp32":
            return _read_planes(reader, count, 4).view(np.float32)
        case "fp16":
            return _read_planes(reader, count, 2).view(np.float16).astype(np.float32)
        case "bf16":
            return (_read_planes(reader, count, 2).astype(np.uint32) << 16).view(np.float32)
        case "int8":
            scales = np.frombuffer(reader.take(4 * counts.size, "the scales"), "<f4").astype(np.float32)
            if bad := int(np.count_nonzero(~(np.isfinite(scales) & (scales >= 0)))):
                raise reader.fail(f"{bad:,} of {scales.size:,} scales are negative, infinite or no number")
            steps = np.frombuffer(reader.section("the steps", count), np.int8)
            return steps.astype(np.float32) * np.repeat(scales, counts)
        case "int8-channel":
            raise WireError("values by channel are read by read_channels.")


def _to_brain(values: Floats) -> NDArray[np.uint16]:
    """The upper half of each float, rounded to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _scales(values: Floats, counts: NDArray[np.int64]) -> Floats:
    """The step size of each tensor: 127 steps reach its largest value."""
    if not np.isfinite(values).all():
        raise WireError("int8 holds numbers only. Received: weights that are NaN or infinite.")
    ends = np.cumsum(counts)
    parts = (values[end - count : end] for end, count in zip(ends, counts, strict=True))
    return np.array([np.abs(part).max(initial=0) / np.float32(127) for part in parts], np.float32)


def _write_planes(writer: Writer, words: NDArray[np.uint32] | NDArray[np.uint16]) -> None:
    """Rotate the sign to the end, then write one section per byte, the most significant first."""
    width = words.dtype.itemsize
    planes = np.empty((width, len(words)), np.uint8)
    for start in range(0, len(words), PIECE):
        piece = words[start : start + PIECE]
        turned = ((piece << 1) | (piece >> (8 * width - 1))).astype(f"<u{width}", copy=False)
        planes[:, start : start + PIECE] = turned.view(np.uint8).reshape(-1, width).T[::-1]
    for plane in planes:
        writer.section(plane.data)


def _read_planes(reader: Reader, count: int, width: int) -> NDArray[Any]:
    turned = np.zeros(count, f"u{width}")
    for place in range(width):
        turned <<= 8
        turned |= np.frombuffer(reader.section(f"byte plane {place + 1} of the values", count), np.uint8)
    return np.asarray((turned >> 1) | (turned << (8 * width - 1)))
