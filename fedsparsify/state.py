"""What a method remembers from round to round: named flat arrays and numbers, values that go in and come out.

The round loop carries the server's state, a client's stays with the client. Both are part of the checkpoint. What is
pruned in the model is zero in every array that has one entry per trainable weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypeAlias, cast

import numpy as np

from . import arrays
from .arrays import Array, FloatArray
from .model import Layout, SparseModel, TensorSpec

State: TypeAlias = Mapping[str, Any]  # name → flat float32 array (numpy, or torch beside a model on a GPU), or number


def is_array(value: object) -> bool:
    """Whether a value is a numpy array or a torch tensor with dimensions."""
    return hasattr(value, "ndim") and hasattr(value, "dtype") and bool(cast(Array, value).ndim)


def complaint(state: object) -> str:
    """What is wrong with a state that a method gave; empty: nothing."""
    if not isinstance(state, Mapping):
        return f"a state is a mapping of names to arrays and numbers. Received: {type(state).__name__}"
    for name, value in state.items():
        if not isinstance(name, str) or not name.isidentifier():
            return f"the name of a state must be an identifier. Received: {name!r}"
        if is_array(value):
            if value.ndim != 1:
                return f"state {name!r} must be a flat array. Received: shape {tuple(value.shape)}"
            if not arrays.dtype_name(value).startswith(("float", "int", "uint", "bool")):
                return f"state {name!r} must hold numbers. Received: {arrays.dtype_name(value)}"
        elif not isinstance(value, Real) and getattr(value, "ndim", None) != 0:
            return f"state {name!r} must be a flat array or a number. Received: {type(value).__name__}"
    return ""


def under(state: State, model: SparseModel) -> State:
    """A copy of the state beside the model, with zeros where the model is pruned."""
    made: dict[str, Any] = {}
    for name, value in state.items():
        if not is_array(value):
            made[name] = int(value) if isinstance(value, Integral) else float(value)
            continue
        array = arrays.float32(arrays.copy(arrays.placed(value, model.weights)))
        if len(array) in (model.layout.trainable, model.layout.total):
            arrays.zero_where(array[: model.layout.trainable], ~model.mask)
        made[name] = array
    return made


def finite(state: State) -> bool:
    """Whether every number in it is finite."""
    return all(arrays.all_finite(value) if is_array(value) else isfinite(value) for value in state.values())


def as_model(state: State, names: Sequence[str], model: SparseModel) -> SparseModel:
    """The named arrays as one model that the codec carries: only what `model` keeps travels."""
    layout = layout_of(names, model.layout)
    flat = np.concatenate([arrays.to_numpy(state[name]) for name in names])
    return SparseModel.masked(layout, flat, mask_of(names, model))


def layout_of(names: Sequence[str], layout: Layout) -> Layout:
    """The layout of that model."""
    return Layout(tuple(TensorSpec(name, (layout.trainable,)) for name in names))


def mask_of(names: Sequence[str], model: SparseModel) -> np.ndarray:
    """Its mask: the model's, once per array."""
    return np.tile(model.host_mask, len(names))


def of_model(carried: SparseModel, beside: FloatArray) -> State:
    """The arrays in such a model, on the device of `beside`."""
    views = carried.layout.views(carried.weights)
    return {name: arrays.placed(array, beside) for name, array in views.items()}


def split(state: State) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Arrays (on the host) and numbers, as a file holds them."""
    held = {name: arrays.to_numpy(value) for name, value in state.items() if is_array(value)}
    return held, {name: value for name, value in state.items() if name not in held}
