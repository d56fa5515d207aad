"""A convolution made ready for one of the kernels, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...model import Floats
from ..frontend.steps import Conv, Pair
from ..kernels.winograd_numbers import POINTS, factors, frequencies, of_weights
from ..layout.storage import SMALL, Place, winograd_fits
from . import packing as streams
from .constants import int32
from .rows import PLANE_GAP, TILES, Kind

SURELY_SPARSE, SURELY_DENSE = 0.15, 0.8  # densities outside of which nothing needs to be measured
CLEARLY = 0.9  # dense weights drive other layers' out of the caches, which a layer alone does not feel
KERNELS = ("auto", "sparse", "dense")


@dataclass(frozen=True, eq=False)
class Layer:
    """One way to compute a convolution: the row's own fields, and the constants that it reads."""

    kind: Kind
    fields: dict[str, Any]
    params: Floats
    scratch: int  # floats of working memory
    stream: NDArray[np.int32] | None = None
    table: NDArray[np.int32] | None = None

    def behind(self, scale: Floats, shift: Floats) -> Layer:
        """The same with what the pool behind it does to each channel, behind the bias."""
        bias, rest = np.split(self.params, [scale.size])
        return replace(self, params=np.concatenate([bias, scale, shift, rest]))


Costs = Callable[[Sequence["Recipe"]], Sequence[float]]


@dataclass(frozen=True)
class Recipe:
    """How a convolution is computed; the same for every part of it, so that workers do not change its bits."""

    kind: Kind
    blocks: int = 1  # of input channels, for the sparse kernel
    paired: bool = False
    columns: int = 4  # of Winograd's tiles


def choose(step: Conv, source: Place, target: Place, kernels: str, costs: Costs, single: bool) -> Recipe:
    """The kernel to take: `auto` measures where both could be the faster one."""
    if source.lone:
        return Recipe(Kind.LONE)
    tile = TILES[streams.tile_for(target.block, source.lanes, step.stride)]
    blocks, paired = streams.channel_blocks(step, tile, source.lanes), streams.pairs_pay(step, tile)
    sparse, dense = Recipe(Kind.SPARSE, blocks, paired), _dense_recipe(step, target)
    if _is_small(step, source, target):
        sparse = Recipe(Kind.SMALL, streams.small_blocks(step, target.block, source.lanes))
    elif single and _is_linear(step, source):
        sparse = Recipe(Kind.LINEAR)
    density = step.weight.density
    if dense is None or kernels == "sparse":
        return sparse
    if surely_dense(step, kernels):
        return dense
    if density < SURELY_SPARSE:
        return sparse
    seconds = costs([sparse, dense])
    return dense if seconds[1] < CLEARLY * seconds[0] else sparse


def surely_dense(step: Conv, kernels: str) -> bool:
    """Whether a layer takes a dense kernel, where there is one, without being measured."""
    return kernels == "dense" or (kernels != "sparse" and step.weight.density > SURELY_DENSE)


def _dense_recipe(step: Conv, target: Place) -> Recipe | None:
    """A dense kernel, where there is one that the sparse kernel does not match at full density."""
    if winograd_fits(step) and min(target.block) >= 4:
        return Recipe(Kind.WINOGRAD, columns=_columns(target.block))
    return Recipe(Kind.DENSE) if step.groups == 1 and prod(target.block) <= SMALL else None


def _columns(block: Pair) -> int:
    """Winograd's tile that covers a block's rows by the fewest products."""
    fitting = [columns for columns in POINTS if columns <= block[1]]
    return min(fitting, key=lambda columns: -(-block[1] // columns) * frequencies(columns))


def _is_small(step: Conv, source: Place, target: Place) -> bool:
    """Whether a layer has the kernel and the images that the kernel for small images is made for."""
    whole = source.grid == (1, 1) and source.block == source.shape[1:] and source.block in ((4, 4), (2, 2))
    return winograd_fits(step) and step.padding == (1, 1) and whole


def _is_linear(step: Conv, source: Place) -> bool:
    """Whether a layer takes single values of one image: its only pixel, by 1 × 1 weights."""
    plain = step.weight.shape[2:] == (1, 1) and step.padding == (0, 0) and step.groups == 1
    return plain and source.grid == (1, 1) and source.shape[1:] == (1, 1)


def pools_too(recipe: Recipe, step: Conv, target: Place) -> bool:
    """Whether a kernel can write the largest of 2 × 2 outputs in place of all: its tiles begin at even pixels."""
    tile = TILES[streams.tile_for(target.block, target.lanes, step.stride)]
    sides = target.block if recipe.kind is not Kind.SPARSE else (*target.block, *tile)
    return recipe.kind in (Kind.WINOGRAD, Kind.SMALL, Kind.SPARSE) and not any(side % 2 for side in sides)


def make(recipe: Recipe, step: Conv, source: Place, target: Place) -> Layer:
    """A convolution, or a part of one, ready for its kernel."""
    match recipe.kind:
        case Kind.SPARSE:
            return _sparse(recipe, step, source, target)
        case Kind.SMALL:
            return _small(recipe, step, source, target)
        case Kind.LINEAR:
            return _linear(step)
        case Kind.LONE:
            fields = {"low": step.low, "high": step.high}
            return Layer(Kind.LONE, fields, step.bias, 0, streams.lone_stream(step, source))
        case Kind.DENSE:
            return _dense(step, source, target)
        case _:
            return _winograd(recipe, step, source)


def making_bytes(recipe: Recipe, step: Conv, lanes: int) -> int:
    """Memory that `make` takes at the most, all arrays on the way included."""
    outputs, depth, *sides = step.weight.shape
    left, area, visits = step.weight.places.size, prod(sides), recipe.blocks * outputs
    match recipe.kind:
        case Kind.DENSE:
            return 20 * (outputs + 15) * (depth * area + 1) + 64 * depth * area + 24 * left
        case Kind.WINOGRAD:
            return frequencies(recipe.columns) * (outputs + 15) * (depth + 1) * 36 + 108 * outputs * depth + 24 * left
        case Kind.LONE:
            return (64 * lanes + 128) * left + 64 * outputs
        case Kind.SMALL:
            return 256 * left + 320 * visits
    return 320 * left + 12 * min(left, outputs * depth) * area + 160 * visits


def _sparse(recipe: Recipe, step: Conv, source: Place, target: Place) -> Layer:
    tile = streams.tile_for(target.block, source.lanes, step.stride)
    stream = streams.sparse_stream(step, source, recipe.blocks, recipe.paired)
    fields = {"tile": tile, "blocks": recipe.blocks, **_strides(step, source)}
    return Layer(Kind.SPARSE, fields, step.bias, prod(TILES[tile]) * step.weight.shape[0] * source.lanes, stream)


def _small(recipe: Recipe, step: Conv, source: Place, target: Place) -> Layer:
    fields = {"blocks": recipe.blocks, "low": step.low, "high": step.high}
    scratch = prod(target.block) * step.weight.shape[0] * source.lanes
    return Layer(Kind.SMALL, fields, step.bias, scratch, streams.small_stream(step, source, recipe.blocks))


def _linear(step: Conv) -> Layer:
    depth = step.weight.shape[1]
    inputs = Place((depth, 1, 1), (1, 1), (1, 1), lanes=1)
    fields = {"low": step.low, "high": step.high}
    return Layer(Kind.LINEAR, fields, step.bias, depth, streams.sparse_stream(step, inputs, 1, paired=False))


def _dense(step: Conv, source: Place, target: Place) -> Layer:
    outputs = step.weight.shape[0]
    tiles = 2 if target.block[1] % 2 == 0 else 1
    many = 16 // tiles
    blocks = -(-outputs // many)
    rows = np.zeros((blocks * many, prod(step.weight.shape[1:])), np.float32)
    rows[:outputs] = step.weight.dense().reshape(outputs, -1)
    bias = np.zeros(blocks * many, np.float32)
    bias[:outputs] = step.bias
    packed = rows.reshape(blocks, many, -1).transpose(0, 2, 1)
    c, ky, kx = np.indices(step.weight.shape[1:]).reshape(3, -1)
    rows_at = (ky * step.dilation[0] - step.padding[0]) * source.row
    offsets = c * source.channel + rows_at + (kx * step.dilation[1] - step.padding[1]) * source.lanes
    fields = {"tile": tiles, "blocks": blocks, "count": offsets.size, **_strides(step, source)}
    params = np.concatenate([bias, packed.ravel()])
    return Layer(Kind.DENSE, fields, params, 0, table=int32(4 * offsets, f"layer {step.name!r}"))


def _winograd(recipe: Recipe, step: Conv, source: Place) -> Layer:
    outputs, depth = step.weight.shape[:2]
    planes, many = frequencies(recipe.columns), 16
    blocks = -(-outputs // many)
    weights = np.zeros((planes, blocks * many, depth), np.float32)
    turns = of_weights(4), of_weights(recipe.columns)
    turned = np.einsum("fy,ocyx,gx->fgoc", turns[0], step.weight.dense().astype(np.float64), turns[1], optimize=True)
    weights[:, :outputs] = turned.reshape(planes, outputs, depth)
    packed = weights.reshape(planes, blocks, many, depth).swapaxes(2, 3)
    offsets = int32(np.arange(depth) * (4 * source.lanes), f"layer {step.name!r}")
    corner = -step.padding[0] * source.row - step.padding[1] * source.lanes
    table = factors(recipe.columns)
    fields = {"tile": recipe.columns, "blocks": blocks, "low": step.low, "high": step.high, "corner": corner}
    fields["count"] = len(table)
    scratch = planes * ((depth + blocks * many) * source.lanes + 2 * PLANE_GAP // 4)
    params = np.concatenate([step.bias, np.array(table, np.float32), packed.ravel()])
    return Layer(Kind.WINOGRAD, fields, params, scratch, table=offsets)


def _strides(step: Conv, source: Place) -> dict[str, Any]:
    strides = {"stride_row": step.stride[0] * source.row, "stride_column": step.stride[1] * source.lanes}
    return {**strides, "low": step.low, "high": step.high}
