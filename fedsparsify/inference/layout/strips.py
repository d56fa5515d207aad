"""Strips: runs of steps that treat each channel alone, computed a few channels at a time.

Input: a level, and the kernel that was chosen for each convolution. Output: chains of steps, each with the channels of
a strip.

A 1 × 1 layer that widens an image, its activation and the depthwise layer after it make values that no cache of a core
holds. Strip by strip they do: only the chain's last value is kept, the others are as large as a strip. Each channel is
computed as without strips, so that the bits are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..frontend.steps import Activation, Affine, Conv, Pool, Step
from ..kernels.program_table import Kind
from .levels import Level
from .pools import Included
from .storage import Storage

STRIP_BYTES = 256 * 1024  # of the values between, which share the second-level cache with what the chain reads
LEAST_CHANNELS = 8  # of a strip, as each reads the whole input of the chain
STREAMED = (Kind.SPARSE, Kind.POINTWISE)


class Chain(NamedTuple):
    """Steps that are computed strip by strip, the channels of a strip, and the values that only the chain reads."""

    steps: tuple[Step, ...]
    channels: int
    between: tuple[str, ...]


def chains_of(
    level: Level,
    storages: Mapping[str, Storage],
    kinds: Mapping[str, Kind],
    steps: Sequence[Step],
    included: Mapping[str, Included],
) -> list[Chain]:
    """The chains of a level whose values between do not fit the nearest caches; convolutions include some steps."""
    reads = Counter(name for step in steps for name in step.inputs)
    apart = {step.name for step in level.steps if reads[step.name] != 1 or step.name == steps[-1].name}
    apart |= {name for name, step in included.items() if isinstance(step, Pool)}
    found: list[Chain] = []
    run: list[Step] = []
    for step in (*level.steps, None):
        if run and (step is None or not _continues(run[-1], step, kinds, apart, level)):
            found += _strips(run, storages, included)
            run = []
        if step is not None and (run or (level.bands == 1 and _begins(step, kinds, level))):
            run.append(step)
    return found


def _strips(run: Sequence[Step], storages: Mapping[str, Storage], included: Mapping[str, Included]) -> list[Chain]:
    """A run of steps as a chain, if strips are worth it."""
    between = tuple(step.name for step in run[:-1] if step.name not in included)
    total = storages[run[0].name].shape[0]
    channels = max(LEAST_CHANNELS, STRIP_BYTES // max(1, sum(4 * storages[name].channel for name in between)))
    return [Chain(tuple(run), channels, between)] if between and channels < total else []


def _begins(step: Step, kinds: Mapping[str, Kind], level: Level) -> bool:
    """Whether a step is a convolution of which any output channels can be computed alone."""
    if not isinstance(step, Conv) or step.name in level.gates:
        return False
    return kinds.get(step.name) in STREAMED and (step.groups == 1 or _depthwise(step))


def _depthwise(step: Conv) -> bool:
    """Whether each output channel reads one input channel, that of its number."""
    return step.groups == step.weight.shape[0] and step.weight.shape[1] == 1


def _continues(before: Step, step: Step, kinds: Mapping[str, Kind], apart: Collection[str], level: Level) -> bool:
    """Whether a step reads a value that nothing else reads, channel by channel."""
    if before.name in apart or step.inputs != (before.name,) or step.name in level.gates:
        return False
    match step:
        case Conv():
            return _depthwise(step) and kinds.get(step.name) is Kind.SPARSE
        case Pool():
            return step.size is None
    return isinstance(step, Affine | Activation)
