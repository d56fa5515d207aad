"""The few kinds of steps that the engine computes. fusion.py makes them from a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from .weights import Weights

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Conv:
    """A convolution, then a clamp. A linear layer is one of 1 × 1 on a flat value."""

    name: str
    inputs: tuple[str, ...]
    weight: Weights  # (out, in / groups, kh, kw)
    bias: Floats  # (out,)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    flat: bool = False  # a linear layer, which takes rows of features
    low: float = -inf
    high: float = inf
    first_input: int = 0  # the input channel of the first group, of a part

    @property
    def group_outputs(self) -> int:
        """Output channels per group."""
        return self.weight.shape[0] // self.groups

    def part(self, first: int, last: int) -> Conv:
        """The same for some of the output channels: any, or those of some of its groups."""
        weight, bias = self.weight.part(first, last), self.bias[first:last]
        if self.groups == 1:
            return replace(self, weight=weight, bias=bias)
        groups, before = (last - first) // self.group_outputs, first // self.group_outputs
        return replace(self, weight=weight, bias=bias, groups=groups, first_input=before * self.weight.shape[1])


@dataclass(frozen=True, eq=False)
class Pool:
    """The largest or the mean value of windows, then scale and shift per channel, then a clamp."""

    name: str
    inputs: tuple[str, ...]
    mean: bool
    kernel: Pair = (0, 0)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    ceil: bool = False
    count_padding: bool = True
    size: Pair | None = None  # of an adaptive pool, which has no kernel
    affine: tuple[Floats, Floats] | None = None
    low: float = -inf
    high: float = inf

    @property
    def plain(self) -> bool:
        """Whether it takes the largest values of 2 × 2 pixels side by side, as most do."""
        squares = self.kernel == self.stride == (2, 2) and self.padding == (0, 0)
        return squares and not self.mean and not self.ceil and self.size is None

    @property
    def bare(self) -> bool:
        """Whether it is plain and no clamp follows it."""
        return self.plain and (self.low, self.high) == (-inf, inf)


@dataclass(frozen=True, eq=False)
class Affine:
    """Scale and shift per channel, then a clamp."""

    name: str
    inputs: tuple[str, ...]
    affine: tuple[Floats, Floats] | None = None
    low: float = -inf
    high: float = inf


@dataclass(frozen=True, eq=False)
class Add:
    """The sum of two values, then a clamp."""

    name: str
    inputs: tuple[str, ...]
    low: float = -inf
    high: float = inf
    gated: bool = False  # the second value has one pixel, which serves all pixels of the first


@dataclass(frozen=True, eq=False)
class Mul(Add):
    """The product of two values, each with each, then a clamp."""


@dataclass(frozen=True, eq=False)
class Constant:
    """Values that all samples have alike."""

    name: str
    values: Floats  # (channels, rows, columns)
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """Some entries of a value that go into another: atoms (size, stride in the source, stride in the target)."""

    source: int  # the number of the input
    atoms: tuple[tuple[int, int, int], ...]
    source_offset: int = 0
    target_offset: int = 0


@dataclass(frozen=True, eq=False)
class Relayout:
    """Entries of values at other places of a new one: permutes, windows, borders, concatenations."""

    name: str
    inputs: tuple[str, ...]
    parts: tuple[Part, ...]
    fill: float | None = None  # of the entries that no part writes


@dataclass(frozen=True, eq=False)
class Norm:
    """Zero mean and unit variance over the channels of each pixel, then scale and shift per channel."""

    name: str
    inputs: tuple[str, ...]
    eps: float
    affine: tuple[Floats, Floats]


class Operand(NamedTuple):
    """A matrix, or many: entry numbers are the sum of one by (matrix, row) and one by column."""

    rows: NDArray[np.int64]  # (matrices, rows)
    columns: NDArray[np.int64]  # (columns,): whole channels
    turned: bool = False  # rows and columns are those of the transposed matrix


@dataclass(frozen=True, eq=False)
class MatMul:
    """Products of matrices, times a factor."""

    name: str
    inputs: tuple[str, ...]
    first: Operand
    second: Operand
    target: Operand
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Activation:
    """A function of each value alone, other than a clamp."""

    name: str
    inputs: tuple[str, ...]
    operation: str  # the name in `ops` of the function
    slope: float = 0.0


@dataclass(frozen=True, eq=False)
class Flatten:
    """All features of a sample in one row."""

    name: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Softmax:
    """Shares over the channels."""

    name: str
    inputs: tuple[str, ...]
    axis: int


Step: TypeAlias = Conv | Pool | Affine | Add | Activation | Flatten | Softmax | Constant | Relayout | Norm | MatMul
CLAMPED = (Conv, Pool, Affine, Add)
