"""What an ONNX model computes from constants and shapes alone, computed while it is read.

Exported networks work out shapes: Shape → Gather → Concat → Reshape. Where a model leaves the batch open, its size is
`BATCH` in such arrays. It may be moved about, but not calculated with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import WireError

BATCH = -(1 << 40)  # the batch's size where a model leaves it open; no side is as small
MOST = 1 << 24  # values of a result
Array = Any  # numpy's, of any type of numbers
Attributes = Mapping[str, Any]


def folded(op: str, inputs: Sequence[Array], attributes: Attributes) -> Array:
    """The result of a node that reads constants alone; WireError where it is too large or depends on the batch."""
    moves = op in MOVES
    if not moves and any(given.dtype.kind == "i" and (given == BATCH).any() for given in inputs):
        raise WireError("it calculates with the size of the batch, which the model leaves open")
    expected = _values(op, inputs, attributes)
    if expected > MOST:
        raise WireError(f"a constant has at most {MOST:,} values. Received: {expected:,}")
    with np.errstate(all="ignore"):
        return np.asarray((MOVES if moves else SUMS)[op](attributes, *inputs))


def _values(op: str, inputs: Sequence[Array], attributes: Attributes) -> int:
    """How many values a result has that is no view of an input; others are checked where they are made."""
    if op == "Concat":
        return sum(given.size for given in inputs)
    if op == "Gather":
        return int(inputs[1].size * inputs[0].size // max(inputs[0].shape[attributes.get("axis", 0)], 1))
    if op == "Expand":
        return prod(np.broadcast_shapes(inputs[0].shape, _sized(inputs[1])))
    return prod(np.broadcast_shapes(*(given.shape for given in inputs))) if op in EACH else 0


def folds(op: str) -> bool:
    """Whether an operation is known here."""
    return op in MOVES or op in SUMS


def _axes(a: Attributes, more: tuple[Array, ...]) -> tuple[int, ...] | None:
    given = more[0] if more else a.get("axes")
    return None if given is None else tuple(int(axis) for axis in given)


def _sized(shape: Sequence[int]) -> tuple[int, ...]:
    sides = tuple(int(side) for side in shape)
    if len(sides) > 32 or min(sides, default=0) < 0 or prod(sides) > MOST:
        raise WireError(f"a constant has at most {MOST:,} values. Received: sides {sides[:8]}")
    return sides


def _slice(a: Attributes, x: Array, *more: Array) -> Array:
    starts, stops = (more[0], more[1]) if len(more) > 1 else (a["starts"], a["ends"])
    axes = more[2] if len(more) > 2 else a.get("axes", range(len(starts)))
    steps = more[3] if len(more) > 3 else [1] * len(starts)
    cuts = [slice(None)] * x.ndim
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        cuts[int(axis)] = slice(int(start), int(stop), int(step))
    return x[tuple(cuts)]


def _reshape(a: Attributes, x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[k] if side == 0 else int(side) for k, side in enumerate(shape)])


def _range(a: Attributes, start: Array, stop: Array, step: Array) -> Array:
    first, last, by = (each.reshape(()).item() for each in (start, stop, step))
    if not by or abs((last - first) / by) > MOST:
        raise WireError(f"a constant has at most {MOST:,} values. Received: {first} up to {last} by {by}")
    return np.arange(first, last, by).astype(start.dtype)


def _divided(a: Attributes, x: Array, y: Array) -> Array:
    if x.dtype.kind == "i":
        return np.trunc(x / np.where(y == 0, 1, y)).astype(x.dtype)
    return x / y


TYPES: Mapping[int, Any] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}  # ONNX's numbers
MOVES: Mapping[str, Callable[..., Array]] = {
    "Cast": lambda a, x: x.astype(TYPES[a["to"]]),
    "Concat": lambda a, *x: np.concatenate(x, a["axis"]),
    "Gather": lambda a, x, places: np.take(x, places, a.get("axis", 0)),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": lambda a, x, *more: np.squeeze(x, _axes(a, more)),
    "Transpose": lambda a, x: x.transpose(a.get("perm")),
    "Unsqueeze": lambda a, x, *more: np.expand_dims(x, _axes(a, more) or ()),
}
EACH = ("Add", "Div", "Equal", "Mod", "Mul", "Pow", "Sub", "Where")  # of values that are repeated to one shape
SUMS: Mapping[str, Callable[..., Array]] = {
    "Add": lambda a, x, y: x + y,
    "ConstantOfShape": lambda a, shape: np.full(_sized(shape), a.get("value", np.float32(0))),
    "Div": _divided,
    "Equal": lambda a, x, y: x == y,
    "Expand": lambda a, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, _sized(shape))),
    "Mod": lambda a, x, y: np.fmod(x, y) if a.get("fmod", 0) else np.mod(x, y),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Not": lambda a, x: ~x,
    "Pow": lambda a, x, y: x**y,
    "Range": _range,
    "ReduceProd": lambda a, x, *more: x.prod(_axes(a, more), keepdims=bool(a.get("keepdims", 1))),
    "Sqrt": lambda a, x: np.sqrt(x),
    "Sub": lambda a, x, y: x - y,
    "Where": lambda a, x, y, z: np.where(x, y, z),
}
