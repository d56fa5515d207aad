"""Values of an exported network: where the batch lies among their dimensions, and what a sample of them is.

torch.export gives tensors with the batch at any place: (tokens, batch, features), or one dimension of windows · batch.
A graph has samples. A value therefore remembers the dimension that holds the batch, and how many entries of that
dimension lie outside and inside of it; its samples are what is left, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from ..ops.base import Untraceable

BATCH_SIZE = 31  # of the exported network; nothing else in a network is likely to have it


class Batch(NamedTuple):
    """A dimension of outer · batch · inner entries."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def kept(self) -> tuple[int, ...]:
        """What a sample keeps of the dimension."""
        return tuple(side for side in (self.outer, self.inner) if side > 1)


@dataclass(frozen=True)
class Held:
    """A tensor of the model."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Exported:
    """A value of the graph as the exported network sees it."""

    name: str
    sides: tuple[int, ...]  # of the tensor
    batch: Batch | None = None  # None: the same for all samples

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of the graph's value."""
        if self.batch is None:
            return self.sides
        axis = self.batch.axis
        return (*self.sides[:axis], *self.batch.kept, *self.sides[axis + 1 :])

    @property
    def plain(self) -> bool:
        """Whether the batch is the first dimension, and alone there."""
        return self.batch in (None, Batch(0))

    def place(self, dim: int) -> int:
        """A dimension of the tensor as one of the graph's value, which counts the batch as its first."""
        dim %= max(len(self.sides), 1)
        if self.batch is None or dim < self.batch.axis:
            return dim + 1
        if dim == self.batch.axis:
            raise Untraceable("the network works across the samples of a batch")
        return dim + len(self.batch.kept)

    def at_rank(self, rank: int) -> Exported:
        """The same with dimensions of 1 before the others."""
        more = rank - len(self.sides)
        batch = self.batch and self.batch._replace(axis=self.batch.axis + more)
        return replace(self, sides=(*[1] * more, *self.sides), batch=batch)


def batch_in(value: Exported, sides: Sequence[int]) -> Batch | None:
    """Where the batch of a value lies after a reshape."""
    if value.batch is None:
        return None
    before, first = prod(value.sides[: value.batch.axis]) * value.batch.outer, 1
    for axis, side in enumerate(sides):
        outer, rest = divmod(before, first)
        if outer and not rest and side % (outer * BATCH_SIZE) == 0:
            return Batch(axis, outer, side // (outer * BATCH_SIZE))
        first *= side
    raise Untraceable(f"it reshapes {value.sides} to {tuple(sides)}, which mixes samples of a batch")


def permuted(value: Exported, order: Sequence[int]) -> tuple[tuple[int, ...], Exported]:
    """The order of the sample's dimensions, counting the batch, and the permuted value under the same name."""
    places: list[int] = []
    for dim in order:
        if value.batch is not None and dim == value.batch.axis:
            first = value.batch.axis + 1
            places += range(first, first + len(value.batch.kept))
        else:
            places.append(value.place(dim))
    batch = value.batch and value.batch._replace(axis=list(order).index(value.batch.axis))
    return tuple(places), Exported(value.name, tuple(value.sides[dim] for dim in order), batch)
