"""A convolution made ready for one of the kernels, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Floats
from . import streams
from .dense_simd import FREQUENCIES
from .operations import TILES, Kind
from .plan import SMALL, Place
from .steps import Conv

SURELY_SPARSE, SURELY_DENSE = 0.15, 0.8  # densities outside of which nothing needs to be measured
KERNELS = ("auto", "sparse", "dense")
_TURN = np.array(
    [[1 / 4, 0, 0], [-1 / 6] * 3, [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
)


@dataclass(frozen=True, eq=False)
class Layer:
    """One way to compute a convolution: the row's own fields, and the constants that it reads."""

    kind: Kind
    fields: dict[str, Any]
    params: Floats
    scratch: int  # floats of working memory
    stream: NDArray[np.int32] | None = None
    table: NDArray[np.int32] | None = None


Costs = Callable[[Sequence[Layer]], Sequence[float]]


def ready(step: Conv, source: Place, target: Place, kernels: str, costs: Costs) -> Layer:
    """The layer as the kernels allow: `auto` measures where both could be the faster one."""
    density = np.count_nonzero(step.weight) / step.weight.size
    made = _dense(step, source, target) if kernels == "dense" or density > SURELY_SPARSE else None
    if kernels == "sparse" or made is None:
        return _sparse(step, source, target)
    if kernels == "dense" or density > SURELY_DENSE:
        return made
    candidates = (_sparse(step, source, target), made)
    return min(zip(costs(candidates), range(2), candidates, strict=True))[2]


def _sparse(step: Conv, source: Place, target: Place) -> Layer:
    tile = streams.tile_for(target.block, source.lanes)
    blocks = streams.channel_blocks(step, TILES[tile], source.lanes)
    stream = streams.sparse_stream(step, source, blocks, streams.pairs_pay(step, TILES[tile]))
    fields = {"tile": tile, "blocks": blocks, **_strides(step, source)}
    scratch = TILES[tile][0] * TILES[tile][1] * len(step.weight) * source.lanes
    return Layer(Kind.SPARSE, fields, step.bias, scratch, stream)


def _dense(step: Conv, source: Place, target: Place) -> Layer | None:
    """A dense layer, where there is a kernel that the sparse one does not match at full density."""
    outputs, _, *kernel = step.weight.shape
    if step.groups > 1:
        return None
    if kernel == [3, 3] and step.stride == step.dilation == (1, 1) and min(target.block) >= 4:
        return _winograd(step, source, target)
    if prod(target.block) > SMALL:
        return None
    tiles = 2 if target.block[1] % 2 == 0 else 1
    many = 16 // tiles
    blocks = -(-outputs // many)
    rows = np.zeros((blocks * many, step.weight[0].size), np.float32)
    rows[:outputs] = step.weight.reshape(outputs, -1)
    bias = np.zeros(blocks * many, np.float32)
    bias[:outputs] = step.bias
    packed = rows.reshape(blocks, many, -1).transpose(0, 2, 1)
    c, ky, kx = np.indices(step.weight.shape[1:]).reshape(3, -1)
    rows_at = (ky * step.dilation[0] - step.padding[0]) * source.row
    offsets = c * source.channel + rows_at + (kx * step.dilation[1] - step.padding[1]) * source.lanes
    fields = {"tile": tiles, "blocks": blocks, "count": offsets.size, **_strides(step, source)}
    params = np.concatenate([bias, packed.ravel()])
    return Layer(Kind.DENSE, fields, params, 0, table=(4 * offsets).astype(np.int32))


def _winograd(step: Conv, source: Place, target: Place) -> Layer:
    outputs, depth = step.weight.shape[:2]
    tiles = 2 if target.block[1] >= 8 else 1
    many = 16 // tiles
    blocks = -(-outputs // many)
    weights = np.zeros((FREQUENCIES, blocks * many, depth), np.float64)
    turned = np.einsum("fy,ocyx,gx->fgoc", _TURN, step.weight.astype(np.float64), _TURN)
    weights[:, :outputs] = turned.reshape(FREQUENCIES, outputs, depth)
    packed = weights.reshape(FREQUENCIES, blocks, many, depth).swapaxes(2, 3).astype(np.float32)
    offsets = np.arange(depth, dtype=np.int32) * (4 * tiles * source.lanes)
    corner = -step.padding[0] * source.row - step.padding[1] * source.lanes
    fields = {"tile": tiles, "blocks": blocks, "low": step.low, "high": step.high, "corner": corner}
    scratch = FREQUENCIES * (depth + blocks * many) * tiles * source.lanes
    params = np.concatenate([step.bias, packed.ravel()])
    return Layer(Kind.WINOGRAD, fields, params, scratch, table=offsets)


def _strides(step: Conv, source: Place) -> dict[str, Any]:
    strides = {"stride_row": step.stride[0] * source.row, "stride_column": step.stride[1] * source.lanes}
    return {**strides, "low": step.low, "high": step.high}
