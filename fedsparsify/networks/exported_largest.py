"""Largest values, which a graph takes by pools of windows, and what is computed by them: logarithms of shares."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ..ops.base import Untraceable
from .exported_calls import difference, summed, total
from .exported_handlers import handles
from .exported_layouts import combined
from .exported_values import BATCH_SIZE, Exported

if TYPE_CHECKING:
    from .exporting import Reader


@handles("adaptive_max_pool2d")
def adaptive_max_pool(reader: Reader, out: Any, x: Any, size: Any) -> list[Any]:
    """The largest values of windows, which must be of one size; the second result, their places, has no value."""
    source = reader.plain(reader.value(x), "adaptive_max_pool2d")
    sides, target = source.sides[-2:], tuple(out[0].shape[-2:])
    if any(side % count for side, count in zip(sides, target, strict=True)):
        raise Untraceable(f"the network takes the largest values of {target} windows of {sides} pixels, unevenly")
    window = [side // count for side, count in zip(sides, target, strict=True)]
    return [_largest_of_windows(reader, source, window, tuple(out[0].shape)), None]


def _largest_of_windows(reader: Reader, source: Exported, window: list[int], sides: tuple[int, ...]) -> Exported:
    sizes = {"kernel": window, "stride": window, "padding": [0, 0], "ceil": False}
    return reader.emit("max_pool2d", [source], sizes, sides=sides)


@handles("amax", "max", "amin", "min")
def largest(reader: Reader, out: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    """The largest values along dimensions; of `max` and `min` the second result, their places, has no value."""
    several, least = reader.call_name.startswith("a"), reader.call_name.endswith("min")
    listed = dims if isinstance(dims, Sequence) else [dims]
    if dims is None or not listed or not all(isinstance(dim, int) for dim in listed):
        raise Untraceable(f"the network takes {reader.call_name} of the whole batch or of two values")
    source = reader.value(x)
    sides = tuple((out if several else out[0]).shape)
    source = combined(reader, "mul", source, -1.0, source.sides) if least else source
    made = largest_along(reader, source, listed, sides)
    made = combined(reader, "mul", made, -1.0, sides) if least else made
    return made if several else [made, None]


def largest_along(reader: Reader, source: Exported, dims: Sequence[int], sides: tuple[int, ...]) -> Exported:
    """The largest values along dimensions, as a pool of an image whose windows they are."""
    source, rank = reader.plain(source, "the largest value"), len(source.sides)
    listed = sorted(dim % rank for dim in dims)
    others = [dim for dim in range(rank) if dim not in listed]
    if 0 in listed:
        raise Untraceable("the network works across the samples of a batch")
    window = [1, prod(source.sides[dim] for dim in listed)]
    if rank == 4 and listed == [2, 3]:
        window = list(source.sides[2:])
    else:
        rows = prod(source.sides[dim] for dim in others[1:])
        source = reader.reshaped(reader.permuted(source, [*others, *listed]), (BATCH_SIZE, 1, rows, window[1]))
    pooled = tuple(side // of for side, of in zip(source.sides[2:], window, strict=True))
    return reader.reshaped(_largest_of_windows(reader, source, window, (*source.sides[:2], *pooled)), sides)


@handles("log_softmax", "_log_softmax")
def log_softmax(reader: Reader, out: Any, x: Any, dim: int, *more: Any, **kwargs: Any) -> Exported:
    """The logarithms of shares along a dimension."""
    source = reader.value(x)
    return difference(reader, out, source, _log_of_sum(reader, source, [dim]))


@handles("logsumexp")
def log_of_sum(reader: Reader, out: Any, x: Any, dims: Any, keepdim: bool = False) -> Exported:
    """The logarithm of a sum of exponentials."""
    listed = dims if isinstance(dims, Sequence) else [dims]
    return reader.reshaped(_log_of_sum(reader, reader.value(x), listed), tuple(out.shape))


def _log_of_sum(reader: Reader, source: Exported, dims: Sequence[int]) -> Exported:
    """The same, with sides of 1; the largest value is taken out of the exponentials."""
    listed = [dim % len(source.sides) for dim in dims]
    one = torch.empty([1 if dim in listed else side for dim, side in enumerate(source.sides)], device="meta")
    most = largest_along(reader, source, listed, tuple(one.shape))
    below = combined(reader, "add", source, combined(reader, "mul", most, -1.0, most.sides), source.sides)
    whole = summed(reader, one, reader.emit("exp", [below], sides=below.sides), listed, True)
    return total(reader, one, reader.emit("log", [whole], sides=whole.sides), most)
