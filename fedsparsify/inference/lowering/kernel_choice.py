"""The choice of a kernel for each convolution.

Input: a convolution and the storage of its input and output. Output: a `KernelChoice`. Where both a sparse and a dense
kernel could be the faster one, the caller's `measure` decides (`autotune.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ..frontend.steps import Conv, Pair
from ..kernels.program_table import Kind
from ..kernels.tiles import SHORT_LINE_TILE, TILES, line_tile, tile_for
from ..kernels.winograd_numbers import POINTS, frequencies
from ..layout.levels import winograd_fits
from ..layout.storage import SMALL, Storage
from .weight_streams import channel_blocks, pairs_pay, small_blocks

SURELY_SPARSE, SURELY_DENSE = 0.15, 0.8  # densities outside of which nothing needs to be measured
NARROW = 12  # convolutions, beyond which dense layers take Winograd's smaller tiles: see _dense_choice
DEEP = 24  # the same without Winograd's transforms
CLEARLY = 0.9  # dense weights drive other layers' weights out of the caches, which a layer measured alone does not show
KERNEL_OPTIONS = ("auto", "sparse", "dense")  # what a user may ask for


@dataclass(frozen=True)
class KernelChoice:
    """How a convolution is computed; the same for every part of it, so that workers do not change its bits."""

    kind: Kind
    input_blocks: int = 1  # of input channels, for the sparse kernels
    paired: bool = False  # neighbouring weights share loads
    tile_columns: int = 4  # of Winograd's tiles


Measure = Callable[[Sequence[KernelChoice]], Sequence[float]]  # seconds that each choice takes


def choose(
    step: Conv, source: Storage, target: Storage, option: str, measure: Measure, single: bool, depth: int
) -> KernelChoice:
    """The kernel to take in a network of `depth` convolutions; `auto` measures where both kinds could be the faster."""
    if source.pixel_lane:
        return KernelChoice(Kind.PIXEL_LANE)
    tile = TILES[tile_for(target.block, source.lanes, step.stride)]
    sparse = KernelChoice(Kind.SPARSE, channel_blocks(step, tile, source.lanes), pairs_pay(step, tile))
    exact = option != "dense" and step.weight.density > SURELY_DENSE
    dense = _dense_choice(step, target, depth if exact else 0)
    if is_pointwise(step, source):
        line = 1, line_tile(prod(source.block), source.lanes)
        sparse = KernelChoice(Kind.POINTWISE, channel_blocks(step, line, source.lanes))
    elif is_small(step, source):
        sparse = KernelChoice(Kind.SMALL, small_blocks(step, target.block, source.lanes))
    elif single and _is_linear(step, source):
        sparse = KernelChoice(Kind.LINEAR)
    if dense is None or option == "sparse":
        return sparse
    if surely_dense(step, option):
        return dense
    if step.weight.density < SURELY_SPARSE:
        return sparse
    seconds = measure([sparse, dense])
    return dense if seconds[1] < CLEARLY * seconds[0] else sparse


def surely_dense(step: Conv, option: str) -> bool:
    """Whether a layer takes a dense kernel, where there is one, without being measured."""
    return option == "dense" or (option != "sparse" and step.weight.density > SURELY_DENSE)


def can_pool(choice: KernelChoice, step: Conv, target: Storage) -> bool:
    """Whether a kernel can write the largest of 2 × 2 outputs instead of all: its tiles begin at even pixels."""
    tile = TILES[tile_for(target.block, target.lanes, step.stride)]
    sides = target.block if choice.kind is not Kind.SPARSE else (*target.block, *tile)
    return choice.kind in (Kind.WINOGRAD, Kind.SMALL, Kind.SPARSE) and not any(side % 2 for side in sides)


def can_activate(choice: KernelChoice, target: Storage, into: Storage) -> bool:
    """Whether a kernel can take an activation of its outputs, and write them to the activation's storage."""
    alike = (target.grid, target.block, target.bands) == (into.grid, into.block, into.bands)
    return choice.kind in (Kind.SPARSE, Kind.POINTWISE) and alike and not target.gate and not into.private


def _dense_choice(step: Conv, target: Storage, depth: int) -> KernelChoice | None:
    """A dense kernel, where there is one that the sparse kernel does not match at full density.

    Winograd's transforms round three times as coarsely as plain sums, those of wide tiles ten times, and the `depth`
    layers of a network multiply an error: four such layers at the beginning of a dense inception_v3 took its logits
    6e-4 from float64, plain sums 2e-4; wide tiles took those of a dense vgg19_bn 2e-4 away.
    """
    if depth <= DEEP and winograd_fits(step) and min(target.block) >= 4:
        columns = _tile_columns(target.block) if depth <= NARROW else min(POINTS)
        return KernelChoice(Kind.WINOGRAD, tile_columns=columns)
    return KernelChoice(Kind.DENSE) if step.groups == 1 and prod(target.block) <= SMALL else None


def _tile_columns(block: Pair) -> int:
    """The width of Winograd's tile that covers a block's rows by the fewest products."""
    fitting = [columns for columns in POINTS if columns <= block[1]]
    return min(fitting, key=lambda columns: -(-block[1] // columns) * frequencies(columns))


def is_pointwise(step: Conv, source: Storage) -> bool:
    """Whether a layer has 1 × 1 weights and an input of enough vectors, end to end."""
    plain = step.weight.shape[2:] == step.stride == (1, 1) and step.padding == (0, 0) and step.groups == 1
    in_line = source.row == source.block[1] * source.lanes
    return plain and in_line and prod(source.block) >= SHORT_LINE_TILE


def is_small(step: Conv, source: Storage) -> bool:
    """Whether a layer has the weights and the images that the kernel for small images is made for."""
    whole = source.grid == (1, 1) and source.block == source.shape[1:] and source.block in ((4, 4), (2, 2))
    return winograd_fits(step) and step.padding == (1, 1) and whole


def _is_linear(step: Conv, source: Storage) -> bool:
    """Whether a layer takes single values of one sample: its only pixel, by 1 × 1 weights."""
    plain = step.weight.shape[2:] == (1, 1) and step.padding == (0, 0) and step.groups == 1
    return plain and source.grid == (1, 1) and source.shape[1:] == (1, 1)
