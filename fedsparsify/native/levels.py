"""Levels of processors, best first: what compiled kernels are shipped for.

A level is a set of instructions that processors of several makers and years have in common. `FEDSPARSIFY_LEVEL` names
the best one that a process may use, whatever the processor has: kernels are then taken for it, or compiled for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import ConfigError

VARIABLE = "FEDSPARSIFY_LEVEL"


@dataclass(frozen=True)
class Level:
    """What the kernels of a level may use."""

    name: str  # in the x86-64 psABI, and LLVM's name of such a processor
    lanes: int  # floats in a vector
    needs: frozenset[str]  # as Linux calls them
    features: str  # for LLVM, besides what the name stands for


_V3 = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = (
    Level("x86-64-v4", 16, _V4, "-prefer-256-bit"),
    Level("x86-64-v3", 8, _V3, ""),
    Level("x86-64", 4, frozenset(), ""),
)


def highest_allowed() -> Level | None:
    """The level that the environment names; None where it names none."""
    if not (name := os.environ.get(VARIABLE)):
        return None
    for level in LEVELS:
        if level.name == name:
            return level
    names = ", ".join(level.name for level in LEVELS)
    raise ConfigError(f"the environment variable {VARIABLE} is one of {names}. Received: {name!r}.")


def levels_of(features: set[str]) -> list[Level]:
    """The levels that a processor with these features may use, best first."""
    highest = highest_allowed()
    allowed = LEVELS if highest is None else LEVELS[LEVELS.index(highest) :]
    return [level for level in allowed if level.needs <= features]
