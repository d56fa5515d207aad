"""The way from steps to rows: layout, kernel choice, bands, what convolutions include, arena, rows.

Input: steps, the shapes of their values, and the block of samples. Output: a `RowWriter` that holds the rows of every
worker and the constant pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..frontend.fusion import Shape
from ..frontend.steps import Conv, Step
from ..kernels.program_table import Kind
from ..layout.bands import in_bands
from ..layout.levels import Level, levels_of
from ..layout.memory_budget import MemoryBudget
from ..layout.network_layout import NetworkLayout, SampleBlock
from ..layout.pools import Included, fusable_activations, fusable_pools
from ..layout.storage import Storage, named
from ..layout.strips import chains_of
from .autotune import measure
from .kernel_choice import KernelChoice, can_activate, can_pool, choose
from .packed_layers import pack, packing_bytes
from .row_writer import RowWriter


class ProgramBuilder:
    """One program under construction; see program.build_program."""

    def __init__(
        self,
        steps: Sequence[Step],
        shapes: dict[str, Shape],
        block: SampleBlock,
        kernel_option: str,
        choices: dict[str, KernelChoice],
        memory: MemoryBudget,
    ) -> None:
        for step in steps:
            if step.inputs:
                shapes.setdefault(step.name, shapes[step.inputs[0]])
        self.steps, self.shapes, self.block, self.memory = steps, shapes, block, memory
        self.kernel_option, self.choices = kernel_option, choices

    def build(self) -> RowWriter:
        """Choose kernels on a first layout, then decide the final layout, and write the rows."""
        block = self.block
        layout = self._lay_out(levels_of(self.steps, self.shapes, block.lanes, block.single))
        for step, source, target in layout.convolutions():
            if step.name not in self.choices:
                self.choices[step.name] = self._choose(step, source, target, layout.floats)
        kinds = {name: choice.kind for name, choice in self.choices.items()}
        if block.workers > 1 and block.single and not self._has_depthwise_chains(layout, kinds):
            layout = self._lay_out(in_bands(layout.levels, self.shapes, block.lanes, block.workers, kinds))
        included = self._included(layout)
        layout.divide_in_strips(kinds, self.steps, included)
        layout.allocate(included)
        writer = RowWriter(layout, self.shapes, self.steps[-1].name, self.choices, included, self.memory)
        writer.write()
        return writer

    def _included(self, layout: NetworkLayout) -> dict[str, Included]:
        """The steps that convolutions include, by the convolution's name."""
        found: dict[str, Included] = {}
        for level, storages in zip(layout.levels, layout.storages, strict=True):
            layers = {step.name: step for step in level.steps if isinstance(step, Conv)}
            for name, pool in fusable_pools(level, self.steps).items():
                if can_pool(self.choices[name], layers[name], storages[name]):
                    found[name] = pool
            for name, step in fusable_activations(level, self.steps).items():
                if can_activate(self.choices[name], storages[name], storages[step.name]):
                    found[name] = step
        return found

    def _has_depthwise_chains(self, layout: NetworkLayout, kinds: Mapping[str, Kind]) -> bool:
        """Whether the first level has wide layers that are computed strip by strip, which bands are not."""
        chains = chains_of(layout.levels[0], layout.storages[0], kinds, self.steps, {})
        return any(isinstance(step, Conv) for chain in chains for step in chain.steps[1:])

    def _lay_out(self, levels: Sequence[Level]) -> NetworkLayout:
        """The layout of some levels, or a refusal of what does not fit into memory."""
        pixel_lanes = self.block.single and self.kernel_option != "dense"
        layout = NetworkLayout(levels, self.shapes, self.block, pixel_lanes)
        layout.allocate({})
        self._expect(layout.floats, 0, f"the network, whose largest value is {named(layout.largest)},")
        return layout

    def _expect(self, floats: int, amount: int, what: str) -> None:
        """Refuse what does not fit beside an arena of so many floats."""
        self.memory.expect(4 * (floats + self.block.lanes) + amount, what)

    def _choose(self, step: Conv, source: Storage, target: Storage, floats: int) -> KernelChoice:
        """The kernel of a convolution, by its density or by measuring."""

        def measured(choices: Sequence[KernelChoice]) -> list[float]:
            """For the channels that one worker writes; each worker transforms the whole input for Winograd."""
            part = step.part(0, -(-target.shape[0] // self.block.workers))
            needed = sum(packing_bytes(choice, part, self.block.lanes) for choice in choices)
            self._expect(floats, needed, f"layer {step.name!r}")
            layers = [pack(choice, part, source, target) for choice in choices]
            workspace = 4 * max(layer.workspace for layer in layers)
            self._expect(floats, needed + workspace, f"layer {step.name!r}")
            return measure(layers, floats, self.block.lanes, far=self.block.single)

        depth = sum(isinstance(other, Conv) for other in self.steps)
        return choose(step, source, target, self.kernel_option, measured, self.block.single, depth)
