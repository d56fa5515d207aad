"""A model: a flat float32 vector, a flat mask over its trainable part, and named views.

Trainable tensors come first in the vector, and the mask covers exactly them. Running statistics follow; they are
averaged and sent like other values but never pruned. The mask is state of its own: a kept weight may be zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import arrays
from .arrays import Array, BoolArray, FloatArray
from .errors import ModelError

Floats: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]
Flat = TypeVar("Flat", bound=Array)


@dataclass(frozen=True)
class TensorSpec:
    """Name and shape of one tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values; a scalar has one."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in the flat vector: the trainable ones first, then the statistics."""

    tensors: tuple[TensorSpec, ...]
    statistics: tuple[TensorSpec, ...] = ()

    def __post_init__(self) -> None:
        if twice := [name for name, count in Counter(spec.name for spec in self).items() if count > 1]:
            raise ModelError(f"a layout names each tensor once. Received twice: {', '.join(sorted(twice))}")

    def __repr__(self) -> str:
        return f"Layout({len(self.tensors)} tensors, {len(self.statistics)} statistics, {self.total:,} values)"

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.tensors + self.statistics)

    @cached_property
    def trainable(self) -> int:
        """Number of values that may be pruned."""
        return sum(spec.size for spec in self.tensors)

    @cached_property
    def total(self) -> int:
        """Number of all values."""
        return self.trainable + sum(spec.size for spec in self.statistics)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Name of each tensor → its slice of the flat vector."""
        places, offset = {}, 0
        for spec in self:
            places[spec.name] = slice(offset, offset + spec.size)
            offset += spec.size
        return places

    def views(self, flat: Flat) -> dict[str, Flat]:
        """Named, shaped views into a flat vector (a numpy array or a torch tensor); nothing is copied."""
        return {spec.name: cast(Flat, flat[self.slices[spec.name]].reshape(spec.shape)) for spec in self}


@dataclass(frozen=True, eq=False)
class Survivors:
    """The kept entries of one tensor: their places in the flat tensor, ascending, and their values."""

    shape: tuple[int, ...]
    places: NDArray[np.int64]
    values: Floats

    def dense(self) -> Floats:
        """The whole tensor, with its zeros."""
        flat = np.zeros(prod(self.shape), np.float32)
        flat[self.places] = self.values
        return flat.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class SparseModel:
    """Weights under a mask. Pruned entries are exactly zero; the constructor refuses other values.

    The arrays are numpy's, or torch tensors while a simulation keeps its models on a GPU. Those come from our own
    kernels and are not checked again, because the check would wait for the GPU.

    Args:
        layout: names and shapes of the tensors.
        weights: all values, flat float32: trainable tensors first, then statistics.
        mask: True where a trainable value is kept, flat.

    Raises:
        ModelError: if sizes or types do not fit the layout, or a weight outside the mask is not zero.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, keep_top
        >>> model = SparseModel.of({"weight": np.array([[1.0, -4.0], [2.0, 3.0]])})
        >>> pruned = model.under(keep_top(abs(model.weights), sparsity=0.5))
        >>> pruned
        SparseModel(1 tensor, 2 of 4 values, sparsity 0.5000)
        >>> pruned.tensors()["weight"]
        array([[ 0., -4.],
               [ 0.,  3.]], dtype=float32)
    """

    layout: Layout
    weights: FloatArray  # (total,)
    mask: BoolArray  # (trainable,)

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
        if isinstance(self.weights, np.ndarray) and bool(((self.trainable_weights != 0) & ~self.mask).any()):
            raise ModelError("weights outside the mask must be zero; build the model with SparseModel.under(mask)")

    def __repr__(self) -> str:
        count = len(self.layout.tensors) + len(self.layout.statistics)
        held = f"{self.nonzero:,} of {self.layout.total:,} values"
        return f"SparseModel({count} tensor{'s' * (count != 1)}, {held}, sparsity {self.sparsity:.4f})"

    @classmethod
    def of(cls, tensors: Mapping[str, ArrayLike], statistics: Mapping[str, ArrayLike] | None = None) -> SparseModel:
        """A dense model of named arrays.

        Args:
            tensors: trainable arrays by name.
            statistics: arrays that are never pruned, such as running means.

        Returns:
            A model that keeps everything, in float32.
        """
        groups = [
            {name: np.asarray(array, np.float32) for name, array in group.items()}
            for group in (tensors, statistics or {})
        ]
        specs = [tuple(TensorSpec(name, array.shape) for name, array in group.items()) for group in groups]
        flat = [array.ravel() for group in groups for array in group.values()]
        return cls.dense(Layout(*specs), np.concatenate([np.zeros(0, np.float32), *flat]))

    @classmethod
    def dense(cls, layout: Layout, weights: FloatArray) -> SparseModel:
        """A model without pruned entries.

        Args:
            layout: names and shapes of the tensors.
            weights: all values, flat float32.

        Returns:
            The model.
        """
        return cls(layout, weights, np.ones(layout.trainable, np.bool_))

    def under(self, mask: BoolArray) -> SparseModel:
        """The same weights under a smaller mask: entries that are pruned stay pruned.

        Args:
            mask: what to keep, of what the model keeps; flat.

        Returns:
            A copy.
        """
        return SparseModel.masked(self.layout, self.weights, self.mask & arrays.placed(mask, self.mask))

    @classmethod
    def masked(cls, layout: Layout, weights: FloatArray, mask: BoolArray) -> SparseModel:
        """A model of any weights, with every entry outside the mask set to zero.

        Args:
            layout: names and shapes of the tensors.
            weights: all values, flat float32.
            mask: True where a trainable value is kept, flat.

        Returns:
            The model.
        """
        weights, mask = arrays.copy(weights), arrays.placed(mask, weights)
        arrays.zero_where(weights[: layout.trainable], ~mask)
        return cls(layout, weights, mask)

    def with_weights(self, weights: FloatArray, finite: bool) -> SparseModel:
        """Other weights under the same mask.

        Args:
            weights: all values, flat float32; zero where the mask prunes.
            finite: whether they are all finite, which the caller knows.

        Returns:
            A model.
        """
        model = SparseModel(self.layout, weights, self.mask)
        model.__dict__.update(finite=finite, pruned=self.pruned)  # values of the cached properties
        return model

    def with_trainable(self, values: FloatArray) -> SparseModel:
        """Other trainable weights under the same mask, with the same statistics.

        Args:
            values: one number per trainable entry; what the mask prunes is set to zero.

        Returns:
            A model.
        """
        weights = arrays.joined(values, self.weights[self.layout.trainable :])
        arrays.zero_where(weights[: self.layout.trainable], ~self.mask)
        return SparseModel(self.layout, weights, self.mask)

    def beside(self, array: Array) -> SparseModel:
        """The same model on another device.

        Args:
            array: an array on that device: numpy's, or a torch tensor.

        Returns:
            A model.
        """
        weights, mask = arrays.placed(self.weights, array), arrays.placed(self.mask, array)
        return SparseModel(self.layout, weights, mask)

    def on_host(self) -> SparseModel:
        """The same model in numpy arrays, as it is sent and stored.

        Returns:
            The model itself if it is there already.
        """
        if isinstance(self.weights, np.ndarray):
            return self
        return SparseModel(self.layout, self.host_weights, self.host_mask)

    @property
    def host_weights(self) -> Floats:
        """The weights as a numpy array; not copied if they are one."""
        return arrays.to_numpy(self.weights)

    @property
    def host_mask(self) -> Mask:
        """The mask as a numpy array; not copied if it is one."""
        return arrays.to_numpy(self.mask)

    @property
    def trainable_weights(self) -> FloatArray:
        """The weights that the mask covers."""
        return self.weights[: self.layout.trainable]

    @cached_property
    def pruned(self) -> int:
        """Number of pruned entries."""
        return self.layout.trainable - arrays.count(self.mask)

    @cached_property
    def empty(self) -> tuple[str, ...]:
        """Trainable tensors without a kept entry."""
        specs = self.layout.tensors
        held = arrays.count_in_each(self.mask, [self.layout.slices[spec.name] for spec in specs])
        return tuple(spec.name for spec, some in zip(specs, held, strict=True) if spec.size and not some)

    @property
    def nonzero(self) -> int:
        """Number of kept entries and statistics, N(t) in the paper's tables."""
        return self.layout.total - self.pruned

    @property
    def sparsity(self) -> float:
        """Pruned fraction of the trainable entries."""
        return self.pruned / self.layout.trainable if self.layout.trainable else 0.0

    @cached_property
    def finite(self) -> bool:
        """Whether every weight is finite."""
        return arrays.all_finite(self.weights)

    def tensors(self) -> dict[str, FloatArray]:
        """Named, shaped views of the weights.

        Returns:
            An array for each trainable tensor and each statistic.
        """
        return self.layout.views(self.weights)

    def host_tensors(self) -> dict[str, Floats]:
        """The same as numpy arrays.

        Returns:
            Views of the weights, if these are a numpy array.
        """
        return self.layout.views(self.host_weights)

    def same_as(self, other: SparseModel) -> bool:
        """Equal to the bit: layout, weights and mask.

        Args:
            other: another model.

        Returns:
            Whether they are.
        """
        mine, theirs = self.on_host(), other.on_host()
        return (
            mine.layout == theirs.layout
            and mine.host_weights.tobytes() == theirs.host_weights.tobytes()
            and bool(np.array_equal(mine.host_mask, theirs.host_mask))
        )
