"""Learning rates as factors of `lr`: by round, and by step within a round.

In: the settings of a schedule. Out: factors in (0, 1]; the first scheduled round and the first step have 1, the last of
them the schedule's final factor.
"""

from __future__ import annotations

from math import cos, pi
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

RoundSchedule: TypeAlias = Literal["constant", "cosine", "step", "exponential"]
StepSchedule: TypeAlias = Literal["constant", "linear", "cosine"]


def round_factor(schedule: RoundSchedule, round: int, rounds: int, final: float, warmup: int, drops: int) -> float:
    """The factor of a round, counted from 1; a round before the first trains as the first.

    In `warmup` rounds the factor rises linearly, by 1 / (warmup + 1) per round; the schedule begins after them.
    """
    if schedule == "constant" and not warmup:
        return 1.0
    round = max(1, min(round, rounds))
    if round <= warmup:
        return round / (warmup + 1)
    place, last = round - warmup - 1, rounds - warmup - 1  # from 0 to `last`
    match schedule:
        case "constant":
            return 1.0
        case "step":
            return float(final ** (place * (drops + 1) // (last + 1) / drops))
        case "exponential":
            return float(final ** (place / max(1, last)))
        case "cosine":
            return _cosine(place / max(1, last), final)


def step_factors(schedule: StepSchedule, steps: int, final: float) -> NDArray[np.float64]:
    """The factor of each step of a client's training in one round."""
    if schedule == "constant":
        return np.ones(steps)
    progress = np.arange(steps) / max(1, steps - 1)
    match schedule:
        case "linear":
            return 1 + (final - 1) * progress
        case "cosine":
            return np.array([_cosine(float(share), final) for share in progress])


def _cosine(progress: float, final: float) -> float:
    return final + (1 - final) * (1 + cos(pi * progress)) / 2
