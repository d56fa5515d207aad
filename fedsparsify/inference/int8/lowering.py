"""From steps and their integers to a program: as `lowering/`, for 16-bit integers.

Input: the steps of an integer part, the integers of each, and the block of samples. Output: a `Program`. Layout, moves
and rows are those of float programs; offsets count 16-bit integers, and a vector has twice as many lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...graph import INPUT
from ..frontend.fusion import Shape
from ..frontend.steps import Conv, Pool, Step
from ..kernels.program_table import PLANE_GAP, Kind
from ..kernels.tiles import TILES, tile_for
from ..layout.levels import levels_of
from ..layout.memory_budget import MemoryBudget
from ..layout.network_layout import NetworkLayout, SampleBlock
from ..layout.pools import fusable_pools
from ..layout.storage import Storage
from ..lowering.convolution_rows import ConvolutionRow, SmallRow, SparseRow, WinogradRow
from ..lowering.encoding import encode
from ..lowering.kernel_choice import KernelChoice, is_small
from ..lowering.packed_layers import packing_bytes
from ..lowering.program import Program
from ..lowering.row_writer import RowWriter
from ..lowering.rows import Clamp, PackRow, PoolRow, Row, TransposeRow, UnpackRow, View
from ..lowering.weight_streams import channel_blocks, small_blocks
from .kernels.facts import BLOCKS, FREQUENCIES, OUTPUTS
from .network import IntNetwork
from .numbers import PoolNumbers, SumNumbers
from .streams import int_small_stream, int_stream
from .winograd_numbers import pairs_of


@dataclass(frozen=True, kw_only=True)
class QuantiseRow(PackRow):
    """Floats of the batch → integers in the arena."""

    params: int  # where 1 / scale, low and high of each channel lie


@dataclass(frozen=True, kw_only=True)
class QuantiseRowsRow(TransposeRow):
    """Rows of features of the batch → integers in the arena."""

    params: int  # as above


@dataclass(frozen=True, kw_only=True)
class DequantiseRow(UnpackRow):
    """Integers in the arena → floats of the output."""

    params: int  # where the scale of each channel lies


@dataclass(frozen=True, kw_only=True)
class IntWinogradRow(WinogradRow):
    """3 × 3, by Winograd's transforms in whole numbers."""

    stream: int = 0


def build_int_program(
    network: IntNetwork, shapes: dict[str, Shape], block: SampleBlock, memory: MemoryBudget
) -> Program:
    """The program of an integer part for a block of samples; `block.lanes` are 16-bit integers."""
    writer = int_rows(network, shapes, block, memory)
    table = encode(writer.finished()[0])
    constants = writer.stream.joined(), writer.params.joined(), writer.indices.joined()
    floats = -(-writer.arena_floats // 2)
    program = Program((table,), *constants, floats, 0, memory, tuple(writer.row_steps))
    memory.take(program.bytes, "the prepared network", program)
    return program


def int_rows(network: IntNetwork, shapes: dict[str, Shape], block: SampleBlock, memory: MemoryBudget) -> IntRowWriter:
    """The rows of an integer part and their constants."""
    levels = levels_of(network.steps, shapes, block.lanes, single=False)
    layout = NetworkLayout(levels, shapes, block, pixel_lanes=False)
    layout.allocate({})
    memory.expect(2 * layout.floats, f"the network, whose largest value is {layout.largest!r},")
    choices = {step.name: _choice(network, step, source, target) for step, source, target in layout.convolutions()}
    pools = {name: pool for level in layout.levels for name, pool in fusable_pools(level, network.steps).items()}
    for step, _, target in layout.convolutions():
        if step.name in pools and not _pools_inside(choices[step.name], step, target):
            del pools[step.name]
    layout.allocate(pools)
    writer = IntRowWriter(network, layout, shapes, choices, pools, memory)
    writer.write()
    return writer


class IntRowWriter(RowWriter):
    """Writes the rows of an integer part, for one worker."""

    spreads = False  # as the input is quantised, float by float

    def __init__(
        self,
        network: IntNetwork,
        layout: NetworkLayout,
        shapes: Mapping[str, Shape],
        choices: Mapping[str, KernelChoice],
        pools: Mapping[str, Pool],
        memory: MemoryBudget,
    ) -> None:
        super().__init__(layout, shapes, network.steps[-1].name, choices, pools, memory)
        self._network = network

    def finished(self) -> list[list[Row]]:
        """The rows, with the scales of input and output."""
        source, output = self._network.channels[INPUT], self._network.channels[self._network.steps[-1].name]
        entry = self.params.add(np.concatenate([1 / source.scale, source.low, source.high]))
        exit = self.params.add(output.scale)
        made: list[Row] = []
        for row in super().finished()[0]:
            if isinstance(row, PackRow):
                row = QuantiseRow(**vars(row), params=entry)
            elif isinstance(row, TransposeRow):
                row = QuantiseRowsRow(**vars(row), params=entry)
            elif isinstance(row, UnpackRow):
                row = DequantiseRow(**vars(row), params=exit)
            made.append(row)
        return [made]

    def _write_step(self, step: Step, storages: dict[str, Storage], sample: int) -> None:
        fused = isinstance(step, Pool) and self._included.get(step.inputs[0]) is step
        if not isinstance(step, Pool) or fused:
            super()._write_step(step, storages, sample)
            return
        numbers, source, target = self._pool(step), storages[step.inputs[0]], storages[step.name]
        params = self.params.add(_words(numbers.factor, numbers.shift))
        row = PoolRow(
            first_sample=sample,
            source=View.of(source),
            target=View.of(target),
            block=target.block,
            windows=0,
            params=params,
            mean=False,
            squares=True,
            clamp=Clamp(),
        )
        self.divide(row, [source], target)

    def _pool(self, step: Pool) -> PoolNumbers:
        numbers = self._network.numbers[step.name]
        assert isinstance(numbers, PoolNumbers)
        return numbers

    def _pack(
        self, step: Conv, source: Storage, target: Storage, pooled: Storage | None, first: int, last: int
    ) -> ConvolutionRow:
        """The row of a convolution, whose integers are packed and added to the constants."""
        choice, into = self._choices[step.name], View.of(pooled or target)
        self.expect(packing_bytes(choice, step, self.block.lanes), f"layer {step.name!r}")
        none = np.zeros(step.weight.shape[0], np.int64)
        included = self._included.get(step.name)
        pool = self._pool(included) if pooled and isinstance(included, Pool) else None
        after = (pool.factor, pool.shift) if pool else (none, none)
        numbers, views = self._network.numbers[step.name], (View.of(source), into)
        output = self._network.channels[step.name]
        if isinstance(numbers, SumNumbers):
            words = _words(numbers.bias, output.low, output.high, *after)
            row: ConvolutionRow
            if choice.kind is Kind.SMALL:
                stream = int_small_stream(step, numbers.multipliers, source, choice.input_blocks)
                self.reserve_workspace(prod(target.block) * step.weight.shape[0] * source.lanes)
                row = SmallRow(
                    source=views[0],
                    target=views[1],
                    channels=step.weight.shape[0],
                    block=target.block,
                    input_blocks=choice.input_blocks,
                    clamp=Clamp(),
                    pooled=pooled is not None,
                )
            else:
                stream = int_stream(step, numbers.multipliers, source, choice.input_blocks)
                tile = _tile(step, target)
                self.reserve_workspace(prod(TILES[tile]) * step.weight.shape[0] * source.lanes)
                row = SparseRow(
                    source=views[0],
                    target=views[1],
                    channels=step.weight.shape[0],
                    block=target.block,
                    stride=(step.stride[0] * source.row, step.stride[1] * source.lanes),
                    tile=tile,
                    input_blocks=choice.input_blocks,
                    clamp=Clamp(),
                    pooled=pooled is not None,
                )
            return replace(row, params=self.params.add(words), stream=self.stream.add(stream))
        assert not isinstance(numbers, PoolNumbers)
        outputs, depth = step.weight.shape[:2]
        pairs = -(-depth // 2)
        factors = np.zeros(2 * pairs, np.int64)
        factors[:depth] = numbers.factors
        ends = (end.astype(np.float32) for end in (output.low, output.high))
        words = np.concatenate([numbers.scale, numbers.bias, *ends, _words(*after, factors)])
        bytes_each = 2 * 2 * source.lanes
        planes = FREQUENCIES * (bytes_each * (pairs + BLOCKS * OUTPUTS) + 2 * PLANE_GAP)
        self.reserve_workspace(planes // 2 + source.lanes)
        return IntWinogradRow(
            source=views[0],
            target=views[1],
            channels=outputs,
            block=target.block,
            depth=depth,
            corner=-step.padding[0] * source.row - step.padding[1] * source.lanes,
            tile_columns=4,
            output_blocks=-(-outputs // 8),
            factor_count=0,
            clamp=Clamp(),
            pooled=pooled is not None,
            params=self.params.add(words),
            stream=self.stream.add(pairs_of(numbers.weights, BLOCKS * OUTPUTS)),
        )


def _choice(network: IntNetwork, step: Conv, source: Storage, target: Storage) -> KernelChoice:
    if not isinstance(network.numbers[step.name], SumNumbers):
        return KernelChoice(Kind.WINOGRAD)
    if is_small(step, source):
        return KernelChoice(Kind.SMALL, small_blocks(step, target.block, source.lanes // 2))
    return KernelChoice(Kind.SPARSE, channel_blocks(step, TILES[_tile(step, target)], source.lanes // 2))


def _tile(step: Conv, target: Storage) -> int:
    """The tile of the sparse kernel; vectors have as many bytes as those of half as many floats."""
    return tile_for(target.block, target.lanes // 2, step.stride)


def _pools_inside(choice: KernelChoice, step: Conv, target: Storage) -> bool:
    """Whether a kernel can write the largest of 2 × 2 outputs: its tiles begin at even pixels."""
    tile = TILES[_tile(step, target)] if choice.kind is Kind.SPARSE else (2, 2)
    return not any(side % 2 for side in (*target.block, *tile))


def _words(*arrays: NDArray[np.int64]) -> NDArray[np.float32]:
    """Integers as the bits of the 32-bit words that `params` holds."""
    return np.concatenate(arrays).astype(np.int32).view(np.float32)
