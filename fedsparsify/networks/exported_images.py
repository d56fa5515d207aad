"""Calls of ATen on images that a graph says by views and products with constants: resizing, shuffles, patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..ops.base import Untraceable, as_pair
from .exported_calls import matmul
from .exported_handlers import handles
from .exported_layouts import combined
from .exported_values import Exported

if TYPE_CHECKING:
    from .exporting import Reader

AT_ONCE = 64  # images of which one row or column is 1


@handles("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d")
def resized(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> Exported:
    """An image of another size: entries repeated, or products with the weights of rows and of columns."""
    source = reader.plain(reader.value(x), reader.call_name)
    batch, channels, *sides = source.sides
    target = tuple(out.shape[2:])
    factors = [new // old for new, old in zip(target, sides, strict=True)]
    if "nearest" in reader.call_name and all(f * s == t for f, s, t in zip(factors, sides, target, strict=True)):
        apart = reader.reshaped(source, (batch, channels, sides[0], 1, sides[1], 1))
        whole = (batch, channels, sides[0], factors[0], sides[1], factors[1])
        return reader.reshaped(combined(reader, "mul", apart, torch.ones(factors[0], 1, factors[1]), whole), out.shape)
    rows, columns = (_weights(reader, sides, dim, args, kwargs) for dim in (0, 1))
    across = matmul(reader, torch.empty((batch, channels, sides[0], target[1]), device="meta"), source, columns.T)
    return matmul(reader, out, rows, across)


def _weights(reader: Reader, sides: Sequence[int], dim: int, args: Any, kwargs: Any) -> torch.Tensor:
    """What each row (or column) of the result takes of those given, (out, in): torch's own results for units."""
    found = []
    for first in range(0, sides[dim], AT_ONCE):
        units = torch.eye(sides[dim])[first : first + AT_ONCE]
        images = units[:, None, :, None] if dim == 0 else units[:, None, None, :]
        given = reader.call_target(images.expand(-1, 1, *sides).contiguous(), *args, **kwargs)
        found.append(given[:, 0, :, 0] if dim == 0 else given[:, 0, 0])
    return torch.cat(found).T.contiguous()


@handles("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def shuffled(reader: Reader, out: Any, x: Any, factor: int) -> Exported:
    """Channels that become pixels, or the other way round, or change places."""
    source, sides = reader.value(x), tuple(out.shape)
    batch, channels, height, width = source.sides
    apart: tuple[int, ...]
    if reader.call_name == "pixel_shuffle":
        apart, order = (batch, sides[1], factor, factor, height, width), [0, 1, 4, 2, 5, 3]
    elif reader.call_name == "pixel_unshuffle":
        apart, order = (batch, channels, sides[2], factor, sides[3], factor), [0, 1, 3, 5, 2, 4]
    else:
        apart, order = (batch, factor, channels // factor, height, width), [0, 2, 1, 3, 4]
    return reader.reshaped(reader.permuted(reader.reshaped(source, apart), order), sides)


@handles("im2col")
def patches(reader: Reader, out: Any, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Exported:
    """Patches side by side, (batch, channels · patch, patches)."""
    source, size = reader.value(x), as_pair(kernel)
    batch, channels, *sides = source.sides
    if (as_pair(stride), as_pair(dilation), as_pair(padding)) != (size, [1, 1], [0, 0]):
        raise Untraceable("the network unfolds overlapping patches, which no graph has; a convolution computes on them")
    (rows, columns), (height, width) = (side // k for side, k in zip(sides, size, strict=True)), size
    if [rows * height, columns * width] != sides:
        raise Untraceable("the network unfolds patches that leave pixels out, which no graph has")
    apart = reader.reshaped(source, (batch, channels, rows, height, columns, width))
    return reader.reshaped(reader.permuted(apart, [0, 1, 3, 5, 2, 4]), tuple(out.shape))


@handles("unfold")
def windows(reader: Reader, out: Any, x: Any, dim: int, size: int, step: int) -> Exported:
    """Windows side by side along a dimension, their entries last."""
    source = reader.value(x)
    dim %= len(source.sides)
    if size != step or source.sides[dim] % size:
        raise Untraceable("the network unfolds overlapping windows, which no graph has")
    sides = source.sides
    apart = reader.reshaped(source, (*sides[:dim], sides[dim] // size, size, *sides[dim + 1 :]))
    return reader.permuted(apart, [*range(dim + 1), *range(dim + 2, len(sides) + 1), dim + 1])


@handles("instance_norm")
def instance_norm(
    reader: Reader, out: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, by_input: bool,
    momentum: float, eps: float, *more: Any,
) -> Exported:  # fmt: skip
    """A norm over the pixels of each channel."""
    source = reader.plain(reader.value(x), "instance_norm")
    held = {"weight": weight, "bias": bias}
    if not by_input:
        held |= {"running_mean": mean, "running_var": variance}
    tensors = {role: tensor.name for role, tensor in held.items() if tensor is not None}
    if by_input:
        return reader.emit("group_norm", [source], {"groups": source.sides[1], "eps": float(eps)}, tensors)
    return reader.emit("batch_norm", [source], {"eps": float(eps)}, tensors)
