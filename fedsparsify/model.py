"""The one thing that flows: a flat float32 vector, a flat mask over its trainable part, and named views.

Trainable tensors come first in the vector and the mask covers exactly them. What follows (running statistics) is
averaged and sent like any other value but never pruned. The mask is state of its own: a kept weight may be zero.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import arrays
from .errors import ModelError

Floats: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class TensorSpec:
    """Name and shape of one tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many values it holds; a scalar holds one."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the flat vector: the trainable ones first, then the statistics."""

    tensors: tuple[TensorSpec, ...]
    statistics: tuple[TensorSpec, ...] = ()

    def __post_init__(self) -> None:
        if twice := [name for name, count in Counter(spec.name for spec in self).items() if count > 1]:
            raise ModelError(f"a layout names each tensor once. Received twice: {', '.join(sorted(twice))}")

    def __iter__(self) -> Any:
        return iter(self.tensors + self.statistics)

    @cached_property
    def trainable(self) -> int:
        """Values that may be pruned."""
        return sum(spec.size for spec in self.tensors)

    @cached_property
    def total(self) -> int:
        """Values that travel."""
        return self.trainable + sum(spec.size for spec in self.statistics)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Name of each tensor → its place in the flat vector."""
        places, offset = {}, 0
        for spec in self:
            places[spec.name] = slice(offset, offset + spec.size)
            offset += spec.size
        return places

    def views(self, flat: Any) -> dict[str, Any]:
        """Named, shaped views into a flat vector (a numpy array or a torch tensor); nothing is copied."""
        return {spec.name: flat[self.slices[spec.name]].reshape(spec.shape) for spec in self}


@dataclass(frozen=True, eq=False)
class Survivors:
    """One tensor by what is left of it: values, and their places in the flat tensor, in order."""

    shape: tuple[int, ...]
    places: NDArray[np.int64]
    values: Floats

    def dense(self) -> Floats:
        """All values, zeros written out."""
        flat = np.zeros(prod(self.shape), np.float32)
        flat[self.places] = self.values
        return flat.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class SparseModel:
    """Weights under a mask. Pruned entries are exactly zero; the constructor refuses anything else.

    The arrays are numpy's, or torch tensors while a simulation keeps its models on a GPU; those are our own kernels'
    work, and are not looked through again, which would make the GPU wait.
    """

    layout: Layout
    weights: Floats  # (total,)
    mask: Mask  # (trainable,)

    def __post_init__(self) -> None:
        for what, array, dtype, size in (
            ("weights", self.weights, "float32", self.layout.total),
            ("mask", self.mask, "bool", self.layout.trainable),
        ):
            if arrays.dtype_name(array) != dtype or tuple(array.shape) != (size,):
                raise ModelError(
                    f"{what} must be {size:,} flat values of {dtype}. "
                    f"Received: shape {tuple(array.shape)} of {arrays.dtype_name(array)}"
                )
        if arrays.is_numpy(self.weights) and bool(((self.weights[: self.layout.trainable] != 0) & ~self.mask).any()):
            raise ModelError("weights outside the mask must be zero; build the model with SparseModel.under(mask)")

    @classmethod
    def dense(cls, layout: Layout, weights: Floats) -> SparseModel:
        """A model of which nothing is pruned yet."""
        return cls(layout, weights, np.ones(layout.trainable, np.bool_))

    def under(self, mask: Mask) -> SparseModel:
        """The same weights under a smaller mask: what was pruned stays pruned."""
        return SparseModel.masked(self.layout, self.weights, self.mask & arrays.placed(mask, self.mask))

    @classmethod
    def masked(cls, layout: Layout, weights: Floats, mask: Mask) -> SparseModel:
        """The model that remains when every entry outside `mask` is set to zero."""
        weights, mask = arrays.copy(weights), arrays.placed(mask, weights)
        arrays.zero_where(weights[: layout.trainable], ~mask)
        return cls(layout, weights, mask)

    def with_weights(self, weights: Floats, finite: bool) -> SparseModel:
        """Other weights under the same mask; the caller has looked whether they are all numbers."""
        model = SparseModel(self.layout, weights, self.mask)
        model.__dict__.update(finite=finite, pruned=self.pruned)  # what the cached properties would find
        return model

    def beside(self, array: Any) -> SparseModel:
        """The same model where `array` lives."""
        weights, mask = arrays.placed(self.weights, array), arrays.placed(self.mask, array)
        return SparseModel(self.layout, weights, mask)

    def on_host(self) -> SparseModel:
        """The same model in numpy, as it is sent and stored."""
        if arrays.is_numpy(self.weights):
            return self
        return SparseModel(self.layout, arrays.to_numpy(self.weights), arrays.to_numpy(self.mask))

    @property
    def trainable_weights(self) -> Floats:
        """The part of the weights that the mask covers."""
        return self.weights[: self.layout.trainable]

    @cached_property
    def pruned(self) -> int:
        """How many trainable entries the mask removed."""
        return self.layout.trainable - arrays.count(self.mask)

    @cached_property
    def empty(self) -> tuple[str, ...]:
        """Trainable tensors of which no entry is left."""
        specs = self.layout.tensors
        held = arrays.any_in_each(self.mask, [self.layout.slices[spec.name] for spec in specs])
        return tuple(spec.name for spec, some in zip(specs, held, strict=True) if spec.size and not some)

    @property
    def nonzero(self) -> int:
        """Values that survive and travel: kept entries plus statistics, N(t) in the paper's tables."""
        return self.layout.total - self.pruned

    @property
    def sparsity(self) -> float:
        """Pruned fraction of the trainable entries."""
        return self.pruned / self.layout.trainable if self.layout.trainable else 0.0

    @cached_property
    def finite(self) -> bool:
        """Whether every weight is a number."""
        return arrays.all_finite(self.weights)

    def tensors(self) -> dict[str, Floats]:
        """Named, shaped views of the weights."""
        return self.layout.views(self.weights)

    def same_as(self, other: SparseModel) -> bool:
        """Equal to the bit: layout, weights and mask."""
        mine, theirs = self.on_host(), other.on_host()
        return (
            mine.layout == theirs.layout
            and mine.weights.tobytes() == theirs.weights.tobytes()
            and bool(np.array_equal(mine.mask, theirs.mask))
        )
