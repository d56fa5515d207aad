"""An integer part of a network: its steps, in a row, and the integers of each.

Input: fused steps and the calibrated ranges of their results. Output: an `IntNetwork`, for samples of one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...errors import ModelError
from ...graph import INPUT
from ...model import Floats
from ..frontend.fusion import Shape
from ..frontend.steps import Conv, Flatten, Pool, Step
from ..layout.levels import winograd_fits
from .numbers import LARGEST, SMALLEST, Channels, PoolNumbers, SumNumbers, input_channels, pool_numbers, sum_numbers
from .winograd_numbers import WinogradNumbers, winograd_numbers

DENSE = 0.28  # density from which Winograd's transforms take less time than the weights that are left
DEEP = 16  # input channels that pay for the transform of the outputs
Range = tuple[Floats, Floats]  # the lowest and the highest value of each channel


@dataclass(frozen=True, eq=False)
class IntNetwork:
    """Steps, the integers of those that compute, and what the integers of every value stand for."""

    steps: tuple[Step, ...]
    numbers: Mapping[str, SumNumbers | WinogradNumbers | PoolNumbers]
    channels: Mapping[str, Channels]


def unsupported(step: Step) -> str | None:
    """Why a step cannot be computed in whole numbers, if it cannot."""
    match step:
        case Conv() | Flatten():
            return None
        case Pool():
            return None if step.bare else "it is no largest-value pool of 2 × 2 pixels"
    return "it has no form in whole numbers"


def check_row(steps: Sequence[Step], ranges: Mapping[str, Range]) -> str | None:
    """Why steps cannot be computed in whole numbers one after another, if they cannot."""
    before = INPUT
    for step in steps:
        if reason := unsupported(step):
            return f"layer {step.name!r} cannot be computed in whole numbers: {reason}."
        if step.inputs != (before,):
            return f"layer {step.name!r} does not read the layer before it."
        if isinstance(step, Conv):
            channels = step.weight.shape[0]
            if step.name not in ranges or any(end.shape != (channels,) for end in ranges[step.name]):
                return f"layer {step.name!r} needs a range of {channels:,} channels."
        before = step.name
    return None if INPUT in ranges and isinstance(steps[0], Conv) else "a part needs a range of its input."


def int_network(steps: Sequence[Step], shapes: Mapping[str, Shape], ranges: Mapping[str, Range]) -> IntNetwork:
    """The integers of steps that `check_row` takes, for samples of one shape."""
    if any(end.shape != shapes[INPUT][:1] for end in ranges[INPUT]):
        raise ModelError(f"ranges of {ranges[INPUT][0].size:,} channels do not fit samples of {shapes[INPUT]}.")
    channels = {INPUT: input_channels(*ranges[INPUT])}
    numbers: dict[str, SumNumbers | WinogradNumbers | PoolNumbers] = {}
    before = INPUT
    for step in steps:
        source = channels[before]
        match step:
            case Conv():
                given = ranges[step.name]
                made = (
                    winograd_numbers(step, source, *given)
                    if by_winograd(step, shapes[step.name])
                    else sum_numbers(step, source, *given)
                )
                numbers[step.name], channels[step.name] = made, made.output
            case Pool():
                pooled = pool_numbers(step, source)
                numbers[step.name], channels[step.name] = pooled, pooled.output
            case _:
                channels[step.name] = source.repeated(prod(shapes[before][1:]))
        scale = channels[step.name].scale
        if scale.min(initial=1) < SMALLEST or scale.max(initial=1) > LARGEST:
            raise ModelError(f"layer {step.name!r}: its weights are too large for whole numbers.")
        before = step.name
    return IntNetwork(tuple(steps), numbers, channels)


def by_winograd(step: Conv, shape: Shape) -> bool:
    """Whether a convolution takes Winograd's transforms: a rule, so that results are the same on every machine.

    The blocks of such images are multiples of Winograd's tiles at every width, so that all have the same tiles.
    """
    whole = all(side in (4, 8) or side % 16 == 0 for side in shape[1:])
    dense = step.weight.density > DENSE and step.weight.shape[1] >= DEEP
    return winograd_fits(step) and whole and dense
