"""Rewrites of steps around pools, before storage is decided.

Input: steps. Output: steps in which each value has one fill outside of the image; pools that convolutions may include.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..frontend.steps import Affine, Conv, Pool, Step
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


def fusable_pools(level: Level, steps: Sequence[Step]) -> dict[str, Pool]:
    """Pools that a convolution may include, by the convolution's name: nothing else reads its output."""
    pools = (step for step in level.steps if isinstance(step, Pool) and step.bare)
    made = {step.name for step in level.steps if isinstance(step, Conv)}
    reads = Counter(name for step in steps for name in step.inputs)
    return {pool.inputs[0]: pool for pool in pools if pool.inputs[0] in made and reads[pool.inputs[0]] == 1}
