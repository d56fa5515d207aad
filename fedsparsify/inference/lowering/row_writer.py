"""From steps and their layout to rows: level by level, step by step.

Input: the layout of a network, the kernel chosen for each convolution, and the steps that convolutions include. Output:
the rows of every worker and their constants, in `ProgramRows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from ...graph import INPUT
from ...model import Floats
from ...ops import ACTIVATIONS
from ..frontend.fusion import Shape
from ..frontend.steps import (
    Activation,
    Add,
    Affine,
    Constant,
    Conv,
    Flatten,
    MatMul,
    Mul,
    Norm,
    Pool,
    Relayout,
    Softmax,
    Step,
)
from ..kernels.program_table import Kind
from ..layout.gates import images_of
from ..layout.levels import inputs_of
from ..layout.memory_budget import MemoryBudget
from ..layout.network_layout import NetworkLayout
from ..layout.pools import Included
from ..layout.storage import Storage
from ..layout.strips import Chain
from .convolution_rows import ConvolutionRow, OffsetsRow, PointwiseRow, StreamRow
from .copy_rows import flatten, move_to_level, pack_input, unpack_output, write_halo
from .free_rows import write_by_pixels, write_product
from .index_tables import inside, pool_windows
from .kernel_choice import KernelChoice
from .packed_layers import PackedLayer, pack, packing_bytes
from .program_rows import ProgramRows, StripPart
from .relayout_rows import write_constant, write_relayout
from .rows import (
    ActivationRow,
    AddRow,
    AffineRow,
    Clamp,
    GateRow,
    MeanRow,
    NormRow,
    PoolRow,
    SoftmaxRow,
    View,
)
from .workers import EVEN_SHARE, Bounds

ACTIVATION_NUMBERS = {operation.name: number for number, operation in enumerate(ACTIVATIONS)}
WINDOW_BYTES = 40  # per output of a pool, of its tables while they are made
Scaling = tuple[Floats, Floats] | None  # scale and shift per channel


class RowWriter(ProgramRows):
    """Writes the rows of a network."""

    def __init__(
        self,
        layout: NetworkLayout,
        shapes: Mapping[str, Shape],
        output: str,
        choices: Mapping[str, KernelChoice],
        included: Mapping[str, Included],
        memory: MemoryBudget,
    ) -> None:
        super().__init__(layout.block, layout.floats, memory)
        self.layout, self._output, self._choices, self._included = layout, output, choices, included
        self._later = layout.later_readers()
        convolutions = [step for step, _, _ in layout.convolutions() if step.groups > 1]
        # Input channels per group of what reads a value.
        self._group_depths = {step.inputs[0]: step.weight.shape[1] for step in convolutions}
        self._images = self._images_of_gates()
        self.row_steps: list[str] = []  # per row of the first worker, the step that it belongs to
        self._packed: dict[tuple[str, int], ConvolutionRow] = {}  # by step and first output channel
        # The caller's arrays are stored as they come.
        self._batch, self._logits = (Storage(shapes[name], (1, 1), shapes[name][1:], 1) for name in (INPUT, output))

    def _images_of_gates(self) -> dict[str, Storage]:
        """By gate, the image whose channels' workers write it."""
        return {
            gate: storages[image]
            for level, storages in zip(self.layout.levels, self.layout.storages, strict=True)
            for gate, image in images_of(level.steps, level.gates).items()
            if self.block.workers > 1
        }

    def write(self) -> None:
        """Write the rows of all samples of the block."""
        for sample in range(0, self.block.samples, self.layout.samples[-1]):
            self._write_level(len(self.layout.levels) - 1, sample)
        if self.block.workers > 1:
            self.workers.add_barrier()
            self._label(self._output)
        self.expect(0, "the prepared network")

    def _write_level(self, index: int, sample: int) -> None:
        """All rows of a level's samples from `sample` on, after those of the finer levels that feed it."""
        level, storages, samples = self.layout.levels[index], self.layout.storages[index], self.layout.samples
        if index:
            for start in range(0, samples[index], samples[index - 1]):
                self._write_level(index - 1, sample + start)
        if any(INPUT in step.inputs for step in level.steps):
            pack_input(self, self._batch, storages[INPUT], sample, samples[index])
            write_halo(self, storages[INPUT], sample)
            self._label(INPUT)
        for name in inputs_of(level):
            write_halo(self, storages[name], sample)
            self._label(name)
        chains = {step.name: chain for chain in self.layout.chains[index] for step in chain.steps}
        for step in level.steps:
            chain = chains.get(step.name)
            if chain and step is not chain.steps[-1]:
                continue
            if chain:
                self._write_chain(chain, storages, sample)
            else:
                self._write_step(step, storages, sample)
            write_halo(self, storages[step.name], sample)
            for later in self._later[index][step.name]:
                target = self.layout.storages[later][step.name]
                move_to_level(self, storages[step.name], target, sample, samples[index], samples[later])
            if step.name == self._output:
                unpack_output(self, storages[step.name], self._logits, sample, samples[index])
            self._label(step.name)

    def _write_chain(self, chain: Chain, storages: dict[str, Storage], sample: int) -> None:
        """The rows of steps that treat each channel alone, strip by strip. Workers divide the channels once for all."""
        head, last = chain.steps[0], chain.steps[-1]
        assert isinstance(head, Conv)
        bounds = self._divide_convolution(head, storages[head.inputs[0]], storages[head.name], sample)
        for worker, (start, end) in enumerate(pairwise(bounds)):
            for first in range(start, end, chain.channels):
                self.strip = StripPart(worker, first, min(first + chain.channels, end))
                for step in chain.steps:
                    self._write_step(step, storages, sample)
                    if step is not last:
                        write_halo(self, storages[step.name], sample)
                    self._label(step.name)
        self.strip = None
        self.workers.record_write(storages[last.name], bounds)

    def _label(self, step: str) -> None:
        """Note that the first worker's rows written since the last call belong to a step."""
        self.row_steps += [step] * (len(self.workers.rows[0]) - len(self.row_steps))

    def _write_step(self, step: Step, storages: dict[str, Storage], sample: int) -> None:
        target = storages[step.name]
        source = storages[step.inputs[0]] if step.inputs else target
        reads, writes, block = View.of(source), View.of(target), target.block
        match step:
            case Conv():
                after = self._included.get(step.name)
                if isinstance(after, Activation):
                    target = storages[after.name]
                pooled = storages[after.name] if isinstance(after, Pool) else None
                self._write_convolution(step, source, target, pooled, sample)
            case Pool() | Activation() if self._included.get(step.inputs[0]) is step:
                return  # the convolution includes it
            case Pool() if target.gate:
                self._write_mean(step, source, target, sample)
            case Pool():
                self._write_pool(step, source, target, sample)
            case Affine():
                clamp = Clamp(step.low, step.high)
                affine = AffineRow(first_sample=sample, source=reads, target=writes, block=block, clamp=clamp)
                scaling = step.affine
                self.divide(affine, [source], target, lambda first, last: _scaling_of(scaling, first, last))
            case Add() if step.gated or isinstance(step, Mul):
                self._write_gate(step, source, storages[step.inputs[1]], target, sample)
            case Constant():
                write_constant(self, step, target, sample)
            case Relayout():
                write_relayout(self, step, [storages[name] for name in step.inputs], target, sample)
            case MatMul():
                write_product(self, step, [storages[name] for name in step.inputs], target, sample)
            case Norm():
                params = self.params.add(np.concatenate(step.affine))
                norm = NormRow(
                    first_sample=sample,
                    source=reads,
                    target=writes,
                    block=block,
                    channels=source.shape[0],
                    params=params,
                    eps=step.eps,
                )
                write_by_pixels(self, norm, source, target)
            case Add():
                other = storages[step.inputs[1]]
                summed = AddRow(
                    first_sample=sample,
                    source=reads,
                    second=View.of(other),
                    target=writes,
                    block=block,
                    clamp=Clamp(step.low, step.high),
                )
                self.divide(summed, [source, other], target)
            case Activation():
                activated = ActivationRow(
                    first_sample=sample,
                    source=reads,
                    target=writes,
                    block=block,
                    activation=ACTIVATION_NUMBERS[step.operation],
                    slope=step.slope,
                )
                self.divide(activated, [source], target)
            case Softmax():
                channels = source.shape[0]
                row = SoftmaxRow(first_sample=sample, source=reads, target=writes, block=block, channels=channels)
                write_by_pixels(self, row, source, target)
            case Flatten():
                flatten(self, source, target, sample)

    def _write_mean(self, step: Pool, source: Storage, target: Storage, sample: int) -> None:
        """The mean of whole images, which is a gate."""
        mask = -1
        if source.ragged:
            cells = prod(source.block) * source.lanes
            self.expect(8 * cells, f"layer {step.name!r}")
            mask = self.indices.add(inside(source))
        row = MeanRow(
            first_sample=sample,
            source=View.of(source),
            target=View.of(target),
            block=source.block,
            clamp=Clamp(step.low, step.high),
            lane_mask=mask,
            cells=prod(source.grid),
        )
        count = prod(source.shape[1:])

        def params(first: int, last: int) -> Floats:
            scale, shift = np.split(_scaling_of(step.affine, first, last), 2)
            return np.concatenate([scale / np.float32(count), shift])

        self.divide(row, [source], target, params)

    def _write_gate(self, step: Add, source: Storage, other: Storage, target: Storage, sample: int) -> None:
        """A product, or a sum with a value of one pixel."""
        row = GateRow(
            first_sample=sample,
            source=View.of(source),
            second=View.of(other),
            target=View.of(target),
            block=target.block,
            clamp=Clamp(step.low, step.high),
            product=isinstance(step, Mul),
            gated=step.gated,
        )
        self.divide(row, [source, other], target)

    def _write_pool(self, step: Pool, source: Storage, target: Storage, sample: int) -> None:
        self.expect(WINDOW_BYTES * prod(target.block), f"layer {step.name!r}")
        windows, factors = pool_windows(step, source, target)
        row = PoolRow(
            first_sample=sample,
            source=View.of(source),
            target=View.of(target),
            block=target.block,
            windows=self.indices.add(windows),
            mean=step.mean,
            squares=step.plain,
            clamp=Clamp(step.low, step.high),
        )

        def params(first: int, last: int) -> Floats:
            return np.concatenate([_scaling_of(step.affine, first, last), factors])

        self.divide(row, [source], target, params)

    def _write_convolution(
        self, step: Conv, source: Storage, target: Storage, pooled: Storage | None, sample: int
    ) -> None:
        """One row per worker, with the weights of its own output channels, which are packed once for all samples."""
        into = pooled or target
        if self.strip:
            worker, first, last = self.strip
            row = self._packed_row(step, source, target, None, first, last)
            views = row.source.moved(0, self.strip.shift(source)), row.target.moved(0, self.strip.shift(target))
            self.workers.rows[worker].append(replace(row, first_sample=sample, source=views[0], target=views[1]))
            return
        bounds = self._divide_convolution(step, source, target, sample)
        each_all = target.bands > 1 or target.private
        shares = self.workers.all_channels(target) if each_all else pairwise(bounds)
        for worker, (first, last) in enumerate(shares):
            if last == first:
                continue
            row = self._packed_row(step, source, target, pooled, first, last)
            views = row.source.moved(0, worker * source.worker_step), row.target.moved(0, worker * into.worker_step)
            self.workers.rows[worker].append(replace(row, first_sample=sample, source=views[0], target=views[1]))
        if not target.private:
            self.workers.record_write(into, bounds)

    def _divide_convolution(self, step: Conv, source: Storage, target: Storage, sample: int) -> Bounds:
        """How workers divide a convolution's output channels, after they waited for and fetched what they read."""
        if target.private:
            self.before_read([source], self.workers.nothing_yet(source), sample, whole=True)
            return self.workers.nothing_yet(target)
        bounds = self._bounds_of_image(step)
        if bounds is None:
            multiple = self._group_depths.get(step.name, 1)
            bounds = self.workers.fair_bounds(step, source, target, self._choices[step.name], multiple)
        apart = step.groups > 1 and self.workers.group_bounds(step, source) == bounds
        self.before_read([source], self.workers.bounds(source) if apart else bounds, sample, whole=not apart)
        return bounds

    def _bounds_of_image(self, step: Conv) -> Bounds | None:
        """How the image that a gate belongs to is divided, so that no worker waits for another's gates."""
        image = self._images.get(step.name)
        if image is None or step.groups > 1:
            return None
        bounds = self.workers.bounds(image)
        share = EVEN_SHARE if self._choices[step.name].kind is Kind.DENSE else 1
        return None if any(bound % share for bound in bounds[:-1]) else bounds

    def _packed_row(
        self, step: Conv, source: Storage, target: Storage, pooled: Storage | None, first: int, last: int
    ) -> ConvolutionRow:
        """The row of some output channels; their weights are packed once."""
        if (step.name, first) not in self._packed:
            self._packed[step.name, first] = self._pack(step, source, target, pooled, first, last)
        return self._packed[step.name, first]

    def _pack(
        self, step: Conv, source: Storage, target: Storage, pooled: Storage | None, first: int, last: int
    ) -> ConvolutionRow:
        """The row of some output channels, whose weights are packed and added to the constants."""
        choice, part = self._choices[step.name], step.part(first, last)
        self.expect(packing_bytes(choice, part, self.block.lanes), f"layer {step.name!r}")
        layer, after = pack(choice, part, source, target), self._included.get(step.name)
        if pooled and isinstance(after, Pool):
            scale, shift = np.split(_scaling_of(after.affine, first, last), 2)
            layer = layer.with_pool(scale, shift, View.of(pooled))
        if isinstance(after, Activation):
            layer = layer.with_hardswish()
        row = self._add_constants(layer)
        return replace(row, target=row.target.moved(first))

    def _add_constants(self, layer: PackedLayer) -> ConvolutionRow:
        """A packed layer's row, with the offsets of its constants."""
        self.reserve_workspace(layer.workspace)
        row = replace(layer.row, params=self.params.add(layer.params))
        if isinstance(row, StreamRow) and layer.stream is not None:
            row = replace(row, stream=self.stream.add(layer.stream))
        if isinstance(row, OffsetsRow) and layer.offsets is not None:
            row = replace(row, offsets=self.indices.add(layer.offsets))
        if isinstance(row, PointwiseRow) and layer.places is not None:
            row = replace(row, places=self.indices.add(layer.places))
        return row


def _scaling_of(scaling: Scaling, first: int, last: int) -> Floats:
    """Scales, then shifts, of some channels."""
    scale, shift = scaling or (np.ones(last, np.float32), np.zeros(last, np.float32))
    return np.concatenate([scale[first:last], shift[first:last]])
