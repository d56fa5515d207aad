"""Values with one scale per channel: an entry of the first dimension of a tensor that has two or more.

Tensors of fewer dimensions stay float32. A channel's scale is a byte, in 256ths of its tensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import WireError
from ..model import Floats, TensorSpec
from .binary import Reader, Writer
from .values import read_values, write_values

STEPS = 63  # from zero to a channel's largest value; one bit less than a byte holds makes files smaller


class ByChannel(NamedTuple):
    """Which kept values belong to a channel; how many each channel has that keeps any; how many such a tensor has."""

    inside: NDArray[np.bool_]  # (kept,)
    counts: NDArray[np.int64]  # (channels,)
    channels: NDArray[np.int64]  # (tensors,)


def write_channels(writer: Writer, specs: Sequence[TensorSpec], kept: NDArray[np.int64], values: Floats) -> None:
    """Write the kept values of consecutive tensors; `kept` are their places, ascending."""
    inside, counts, channels = by_channel(specs, kept)
    write_values(writer, values[~inside], np.array([kept.size - counts.sum()]), "fp32")
    if not counts.size:
        return
    wide = values[inside]
    if not np.isfinite(wide).all():
        raise WireError("int8 holds numbers only. Received: weights that are NaN or infinite.")
    largest = np.maximum.reduceat(np.abs(wide), np.cumsum(counts) - counts)
    tensors = (np.maximum.reduceat(largest, np.cumsum(channels) - channels) / np.float32(STEPS)).astype(np.float32)
    whole = np.repeat(np.maximum(tensors.astype(np.float64), np.finfo(np.float32).tiny), channels)
    shares = np.clip(np.ceil(largest / STEPS / whole * 256) - 1, 0, 255).astype(np.uint8)
    writer.buffer += tensors.astype("<f4").tobytes()
    writer.section(shares.tobytes())
    scales = np.repeat(_scales(tensors, shares, channels), counts)
    steps = np.rint(wide / np.where(scales > 0, scales, np.float32(1)))
    writer.section(np.clip(steps, -127, 127).astype(np.int8).tobytes())


def read_channels(reader: Reader, specs: Sequence[TensorSpec], kept: NDArray[np.int64]) -> Floats:
    """The kept values of consecutive tensors."""
    inside, counts, channels = by_channel(specs, kept)
    values = np.empty(kept.size, np.float32)
    values[~inside] = read_values(reader, np.array([kept.size - counts.sum()]), "fp32")
    if counts.size:
        tensors = np.frombuffer(reader.take(4 * channels.size, "the scales"), "<f4").astype(np.float32)
        if bad := int(np.count_nonzero(~(np.isfinite(tensors) & (tensors >= 0)))):
            raise reader.fail(f"{bad:,} of {tensors.size:,} scales are negative, infinite or no number")
        shares = np.frombuffer(reader.section("the channels' scales", counts.size), np.uint8)
        steps = np.frombuffer(reader.section("the steps", int(counts.sum())), np.int8)
        with np.errstate(over="ignore"):  # the receiver of the model refuses values that are not finite
            values[inside] = steps.astype(np.float32) * np.repeat(_scales(tensors, shares, channels), counts)
    return values


def by_channel(specs: Sequence[TensorSpec], kept: NDArray[np.int64]) -> ByChannel:
    """Kept entries of consecutive tensors, by channel. Memory grows with what is kept."""
    inside, start = np.zeros(kept.size, np.bool_), 0
    counts: list[NDArray[np.int64]] = []
    for spec in specs:
        first, last = np.searchsorted(kept, [start, start + spec.size])
        if len(spec.shape) > 1 and last > first:
            inside[first:last] = True
            channel = (kept[first:last] - start) // (spec.size // spec.shape[0])
            counts.append(np.diff(np.flatnonzero(np.diff(channel)), prepend=-1, append=channel.size - 1))
        start += spec.size
    return ByChannel(inside, np.concatenate([np.zeros(0, np.int64), *counts]), np.array([part.size for part in counts]))


def _scales(tensors: Floats, shares: NDArray[np.uint8], channels: NDArray[np.int64]) -> Floats:
    """The scale of each channel."""
    return np.repeat(tensors, channels) * (shares.astype(np.float32) + 1) / np.float32(256)
