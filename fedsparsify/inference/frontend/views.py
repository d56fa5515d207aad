"""Views: how a value of the graph, of any number of dimensions, lies in what a step gives.

A step gives (channels, rows, columns). Its entries are numbered in that order. A dimension of a value is one or more
atoms (size, stride) over these numbers, so that permutes and reshapes, and most slices, only write a view anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

Shape = tuple[int, int, int]  # channels, rows, columns


class Atom(NamedTuple):
    """So many entries, with so many numbers from one to the next."""

    size: int
    stride: int


Dimension = tuple[Atom, ...]


@dataclass(frozen=True)
class View:
    """A value: the step that gives it, that step's shape, and the value's dimensions."""

    step: str
    base: Shape
    dims: tuple[Dimension, ...]
    offset: int = 0

    @classmethod
    def of(cls, step: str, base: Shape, shape: Sequence[int]) -> View:
        """A value of some shape whose entries lie in the order of the step's."""
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        return cls(step, base, tuple((Atom(size, stride),) for size, stride in zip(shape, strides, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's shape."""
        return tuple(prod(atom.size for atom in dim) for dim in self.dims)

    @property
    def pixels(self) -> int:
        """Of the step's shape."""
        return self.base[1] * self.base[2]

    @property
    def atoms(self) -> list[Atom]:
        """Of all dimensions, in order."""
        return [atom for dim in self.dims for atom in dim]

    @property
    def whole(self) -> bool:
        """Whether it is all of the step's entries, each once."""
        covered = 1
        for size, stride in sorted((atom for atom in self.atoms if atom.size > 1), key=lambda atom: atom.stride):
            if stride != covered:
                return False
            covered *= size
        return self.offset == 0 and covered == prod(self.base)

    @property
    def places(self) -> tuple[object, ...]:
        """Where its entries lie: equal for views that differ in how dimensions are divided into atoms alone."""
        return self.base, self.offset, tuple(tuple(_joined(dim)) for dim in self.dims)

    def on(self, step: str) -> View:
        """The same of another step of the same shape."""
        return replace(self, step=step)

    def permuted(self, order: Sequence[int]) -> View:
        """With the dimensions in another order."""
        return replace(self, dims=tuple(self.dims[k] for k in order))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """With dimensions of other sizes; None where an atom would have to be cut unevenly."""
        rest, dims = _joined(self.atoms)[::-1], []
        for side in shape:
            dim: list[Atom] = []
            left = side
            while left > 1:
                if not rest:
                    return None
                size, stride = rest.pop()
                if left % size == 0:
                    dim.append(Atom(size, stride))
                    left //= size
                elif size % left == 0:
                    dim.append(Atom(left, stride * (size // left)))
                    rest.append(Atom(size // left, stride))
                    left = 1
                else:
                    return None
            dims.append(tuple(dim))
        return replace(self, dims=tuple(dims))

    def sliced(self, dim: int, start: int, stop: int, step: int) -> View | None:
        """Some entries along a dimension; None where it is not one atom."""
        atoms = [atom for atom in self.dims[dim] if atom.size > 1]
        if len(atoms) > 1:
            return None
        stride = atoms[0].stride if atoms else 0
        made = (Atom(-(-(stop - start) // step), stride * step),)
        dims = (*self.dims[:dim], made, *self.dims[dim + 1 :])
        return replace(self, dims=dims, offset=self.offset + start * stride)

    def repeated(self, shape: Sequence[int]) -> View:
        """With dimensions of 1 repeated up to a shape."""
        dims = zip(self.dims, self.shape, shape, strict=True)
        return replace(self, dims=tuple(dim if a == b else (Atom(b, 0),) for dim, a, b in dims))

    def in_channels(self, dim: int) -> bool:
        """Whether a dimension lies in the channels alone: its entries are whole channels apart."""
        pixels = self.pixels
        return all(stride >= pixels and stride % pixels == 0 for size, stride in self.dims[dim] if size > 1)

    def channel_dims(self) -> list[int]:
        """Dimensions that lie in the channels, of more than one entry."""
        return [k for k, side in enumerate(self.shape) if side > 1 and self.in_channels(k)]

    def oriented(self, channels: Sequence[int]) -> bool:
        """Whether the channels are some dimensions, in this order, and all others are the pixels."""
        covered = self.pixels
        for atom in reversed([atom for dim in channels for atom in self.dims[dim] if atom.size > 1]):
            if atom.stride != covered:
                return False
            covered *= atom.size
        return self.whole and covered == prod(self.base)


def _joined(atoms: Sequence[Atom]) -> list[Atom]:
    """Atoms of more than one entry; neighbours that go on where the other ends are one."""
    joined: list[Atom] = []
    for atom in atoms:
        if atom.size > 1 and joined and joined[-1].stride == atom.size * atom.stride:
            joined[-1] = Atom(joined[-1].size * atom.size, atom.stride)
        elif atom.size > 1:
            joined.append(atom)
    return joined


def line(count: int, lanes_rows: int = 4) -> tuple[int, int]:
    """Rows and columns for so many pixels that have no place in an image, with few lanes idle; else one row."""
    sides = [rows for rows in range(1, int(count**0.5) + 1) if count % rows == 0]

    def idle(rows: int) -> float:
        cells = [-(-side // lanes_rows) * lanes_rows for side in (rows, count // rows)]
        return prod(cells) / count

    best = min(sides, key=lambda rows: (idle(rows), -rows))
    return (best, count // best) if idle(best) < 1.5 else (1, count)
