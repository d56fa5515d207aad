"""Calls of ATen that move entries: views, slices, concatenations, borders; and values combined with repeated sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..ops.base import Untraceable
from .exported_handlers import handles
from .exported_values import BATCH_SIZE, Batch, Exported

if TYPE_CHECKING:
    from .exporting import Reader


@handles(
    *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "alias", "clone", "detach"),
    *("contiguous", "lift_fresh_copy", "_reshape_alias", "detach_", "dropout", "feature_dropout"),
)
def reshaped(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> Exported:
    """The same entries with other sides."""
    return reader.reshaped(reader.value(x), tuple(out.shape))


@handles("to", "_to_copy", "type_as", "float")
def cast(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> Exported:
    """A cast to the type that all values have."""
    if out.dtype != torch.float32:
        raise Untraceable(f"the network turns values into {out.dtype}; a graph has float32 alone")
    return reader.value(x)


@handles("permute")
def permute(reader: Reader, out: Any, x: Any, order: Sequence[int]) -> Exported:
    """Dimensions in another order."""
    source = reader.value(x)
    return reader.permuted(source, [dim % len(source.sides) for dim in order])


@handles("transpose", "swapaxes")
def transpose(reader: Reader, out: Any, x: Any, first: int, second: int) -> Exported:
    """Two dimensions exchanged."""
    source = reader.value(x)
    order = list(range(len(source.sides)))
    first, second = first % len(order), second % len(order)
    order[first], order[second] = second, first
    return reader.permuted(source, order)


@handles("t")
def turned(reader: Reader, out: Any, x: Any) -> Exported:
    """A matrix transposed."""
    source = reader.value(x)
    return reader.permuted(source, list(range(len(source.sides)))[::-1])


@handles("slice")
def sliced(
    reader: Reader, out: Any, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Exported:
    """Some of the entries along a dimension."""
    source = reader.value(x)
    side = source.sides[dim]
    first, last, _ = slice(start, end, step).indices(side)
    if (first, last, step) == (0, side, 1):
        return source
    return _taken(reader, source, dim, first, last, step)


def _taken(reader: Reader, source: Exported, dim: int, first: int, last: int, step: int = 1) -> Exported:
    dim %= len(source.sides)
    if last <= first:
        raise Untraceable("the network slices nothing out of a value")
    attributes = {"axis": source.place(dim), "start": first, "stop": last, "step": step}
    sides = (*source.sides[:dim], -(-(last - first) // step), *source.sides[dim + 1 :])
    return reader.emit("slice", [source], attributes, sides=sides)


@handles("select")
def selected(reader: Reader, out: Any, x: Any, dim: int, index: int) -> Exported:
    """One entry along a dimension."""
    source = reader.value(x)
    index %= source.sides[dim]
    return reader.reshaped(_taken(reader, source, dim, index, index + 1), tuple(out.shape))


@handles("split", "split_with_sizes", "chunk", "tensor_split")
def split(reader: Reader, out: Any, x: Any, size: Any, dim: int = 0) -> list[Exported]:
    """Neighbouring parts along a dimension."""
    source, parts, first = reader.value(x), [], 0
    for part in out:
        last = first + part.shape[dim]
        parts.append(source if part.shape == source.sides else _taken(reader, source, dim, first, last))
        first = last
    return parts


@handles("unbind")
def unbound(reader: Reader, out: Any, x: Any, dim: int = 0) -> list[Exported]:
    """Every entry along a dimension by itself."""
    return [selected(reader, part, x, dim, index) for index, part in enumerate(out)]


@handles("expand", "expand_as")
def expanded(reader: Reader, out: Any, x: Any, *args: Any, **kwargs: Any) -> Exported:
    """Entries repeated along dimensions of 1; along the batch, nothing is repeated in a sample."""
    source, sides = reader.value(x).at_rank(len(out.shape)), tuple(out.shape)
    if source.sides == sides:
        return source
    if source.batch is None:
        grown = [dim for dim, (a, b) in enumerate(zip(source.sides, sides, strict=True)) if a == 1 and b == BATCH_SIZE]
        if len(grown) == 1:
            dim = grown[0]
            sample = (*source.sides[:dim], *source.sides[dim + 1 :])
            one = reader.settled(Exported(source.name, sample))
            source = Exported(one.name, (*source.sides[:dim], BATCH_SIZE, *source.sides[dim + 1 :]), Batch(dim))
    if source.sides == sides:
        return source
    grown = [1 if a == b else b for a, b in zip(source.sides, sides, strict=True)]
    return combined(reader, "mul", source, torch.ones(grown), sides)


@handles("cat", "concat", "concatenate")
def concatenated(reader: Reader, out: Any, values: Sequence[Any], dim: int = 0) -> Exported:
    """Values one after another."""
    parts = [reader.value(value) for value in values if not isinstance(value, torch.Tensor) or value.numel()]
    return _joined(reader, parts, dim, tuple(out.shape))


@handles("stack")
def stacked(reader: Reader, out: Any, values: Sequence[Any], dim: int = 0) -> Exported:
    """Values one after another along a new dimension."""
    sides = list(out.shape)
    sides[dim] = 1
    parts = [reader.reshaped(reader.value(value), tuple(sides)) for value in values]
    return _joined(reader, parts, dim, tuple(out.shape))


def _joined(reader: Reader, parts: list[Exported], dim: int, sides: tuple[int, ...]) -> Exported:
    if len(parts) == 1:
        return parts[0]
    like = next((part for part in parts if part.batch is not None), parts[0])
    if any(part.batch not in (None, like.batch) for part in parts):
        raise Untraceable("the network concatenates values whose batches lie in other places")
    whole = [of_all(reader, part, like) for part in parts]
    return reader.emit("cat", whole, {"axis": like.place(dim % len(sides))}, like=like, sides=sides)


def of_all(reader: Reader, value: Exported, like: Exported) -> Exported:
    """A value without a batch, as one of the samples' values; all along the batch must be alike."""
    if value.batch is not None or like.batch is None:
        return reader.settled(value)
    sides, axis = value.sides, like.batch.axis
    if sides[axis] == 1:
        return reader.settled(Exported(value.name, (*sides[:axis], *[1] * len(like.batch.kept), *sides[axis + 1 :])))
    tensor = reader.constants.get(value.name)
    if tensor is not None and sides[axis] == like.sides[axis]:
        by_sample = tensor.reshape(*sides[:axis], like.batch.outer, BATCH_SIZE, like.batch.inner, *sides[axis + 1 :])
        one = by_sample.narrow(axis + 1, 0, 1)
        if bool((by_sample == one).all()):
            return reader.value(one.reshape(*sides[:axis], *like.batch.kept, *sides[axis + 1 :]))
    raise Untraceable(f"a constant of shape {sides} has other values for every sample")


@handles("roll")
def rolled(reader: Reader, out: Any, x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Exported:
    """Entries shifted along dimensions; those that leave come back at the other end."""
    made = reader.value(x)
    if not dims:
        raise Untraceable("the network rolls a value without naming dimensions")
    for shift, dim in zip(shifts, dims, strict=True):
        side = made.sides[dim]
        cut = -shift % side
        if cut:
            parts = [_taken(reader, made, dim, cut, side), _taken(reader, made, dim, 0, cut)]
            made = _joined(reader, parts, dim, made.sides)
    return made


@handles("pad", "constant_pad_nd")
def padded(
    reader: Reader, out: Any, x: Any, pads: Sequence[int], mode: Any = "constant", value: float | None = None
) -> Exported:
    """A border; a negative one cuts entries off."""
    if not isinstance(mode, str):
        mode, value = "constant", mode
    if mode != "constant":
        raise Untraceable(f"the network pads with {mode!r}; a graph knows a constant")
    made = reader.value(x)
    ends = {len(made.sides) - 1 - k: (pads[2 * k], pads[2 * k + 1]) for k in range(len(pads) // 2)}
    before, after = [0] * len(made.sample), [0] * len(made.sample)
    for dim, (first, last) in ends.items():
        if first < 0 or last < 0:
            made = _taken(reader, made, dim, max(-first, 0), made.sides[dim] - max(-last, 0))
        if first > 0 or last > 0:
            before[made.place(dim) - 1], after[made.place(dim) - 1] = max(first, 0), max(last, 0)
    if not any((*before, *after)):
        return made
    attributes = {"before": before, "after": after, "value": float(value or 0)}
    return reader.emit("pad", [made], attributes)


def combined(reader: Reader, op: str, first: Any, second: Any, sides: tuple[int, ...] | None = None) -> Exported:
    """A sum or product, each value repeated along its sides of 1; its sides are those of the first, or given."""
    given = [reader.value(value) for value in (first, second)]
    sides = given[0].sides if sides is None else sides
    values = [value.at_rank(len(sides)) for value in given]
    like = next((value for value in values if value.batch is not None), values[0])
    if any(value.batch not in (None, like.batch) for value in values):
        raise Untraceable("the network combines values whose batches lie in other places")
    return reader.emit(op, [of_all(reader, value, like) for value in values], like=like, sides=sides)
