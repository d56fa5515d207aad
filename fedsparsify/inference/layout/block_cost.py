"""What serving samples in blocks costs, and one by one: about how many vectors the convolutions multiply.

Input: steps with the shapes of their values. Output: whether blocks of samples that share vectors take less time.

Large images fill the lanes of a vector by themselves, so that a block of them only outgrows the caches, and leaves
lanes idle where it is not full. Small images of deep layers need several samples for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..frontend.fusion import Shape
from ..frontend.steps import Conv, Step
from ..kernels.tiles import covering_cost
from .levels import levels_of

LARGE = 1 << 17  # floats of a value that, with those beside it, does not stay in the second-level cache
LARGE_GAIN = 0.75  # of the multiplications, below which blocks of such images are worth what they lose in the caches


def blocks_pay(steps: Sequence[Step], shapes: dict[str, Shape], lanes: int, samples: int) -> bool:
    """Whether a batch of so many samples is served faster in blocks than sample by sample."""
    if max(map(prod, shapes.values())) <= LARGE:
        return True
    together, apart = (_cost(steps, shapes, lanes, samples, single) for single in (False, True))
    return together < LARGE_GAIN * apart


def _cost(steps: Sequence[Step], shapes: dict[str, Shape], lanes: int, samples: int, single: bool) -> float:
    cost = 0.0
    for level in levels_of(steps, shapes, lanes, single):
        runs = samples if single else -(-samples // (lanes // prod(level.grid)))
        for step in level.steps:
            if isinstance(step, Conv):
                weights = step.weight.places.size
                cost += runs * weights * covering_cost(level.blocks[step.name], lanes, step.stride)
    return cost
