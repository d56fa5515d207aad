"""Rewrites of steps around pools, before storage is decided, and what convolutions may include.

Input: steps. Output: steps in which each value has one fill outside of the image; pools and activations, by the
convolution before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ...ops.hardswish import Hardswish
from ..frontend.steps import Activation, Affine, Conv, Pool, Step
from .levels import Level


def separate_fills(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Give a largest-value pool that needs -∞ around its input a copy of its own where others need zeros."""
    made: list[Step] = []
    reads, names = Counter(name for step in steps for name in step.inputs), {step.name for step in steps}
    for step in steps:
        if isinstance(step, Pool) and reads[step.inputs[0]] > 1 and not step.mean and (step.ceil or any(step.padding)):
            name = f"{step.name}.input"
            while name in names:
                name += "'"
            names.add(name)
            copy = Affine(name, step.inputs)
            made += [copy, replace(step, inputs=(copy.name,))]
        else:
            made.append(step)
    return tuple(made)


Included: TypeAlias = Pool | Activation  # a step that a convolution includes


def fusable_pools(level: Level, steps: Sequence[Step]) -> dict[str, Pool]:
    """Pools that a convolution may include, by the convolution's name: nothing else reads its output."""
    pools = [step for step in level.steps if isinstance(step, Pool) and step.bare]
    alone = _only_readers(level, steps)
    return {pool.inputs[0]: pool for pool in pools if pool.inputs[0] in alone}


def fusable_activations(level: Level, steps: Sequence[Step]) -> dict[str, Activation]:
    """Activations that a convolution may include, by its name: those that the sparse kernels have code for."""
    found = [step for step in level.steps if isinstance(step, Activation) and step.operation == Hardswish.name]
    alone = _only_readers(level, steps)
    return {step.inputs[0]: step for step in found if step.inputs[0] in alone}


def _only_readers(level: Level, steps: Sequence[Step]) -> set[str]:
    """Names of a level's convolutions whose output is read by one step."""
    reads = Counter(name for step in steps for name in step.inputs)
    return {step.name for step in level.steps if isinstance(step, Conv) and reads[step.name] == 1}
