"""Levels of processors, best first: what compiled kernels are shipped for.

A level is a set of instructions that processors of several makers and years have in common. `FEDSPARSIFY_LEVEL` names
the best one that a process may use, whatever the processor has: kernels are then taken for it, or compiled for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from ..errors import ConfigError

VARIABLE = "FEDSPARSIFY_LEVEL"


@dataclass(frozen=True)
class Level:
    """What the kernels of a level may use."""

    name: str
    processor: str  # LLVM's name of one that has just this, as in the x86-64 psABI
    lanes: int  # floats in a vector
    needs: frozenset[str]  # as Linux calls them
    features: str  # for LLVM, besides what the name stands for; kernels that choose instructions look here too


_V3 = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_SSE, _AVX2, _AVX512 = "+sse2", "+sse2,+ssse3,+avx2", "+sse2,+ssse3,+avx2,+avx512bw,-prefer-256-bit"
LEVELS = (  # those with VNNI are for int8 kernels alone; others are taken from the level below
    Level("x86-64-v4-vnni", "x86-64-v4", 16, _V4 | {"avx512_vnni"}, f"{_AVX512},+avx512vnni"),
    Level("x86-64-v4", "x86-64-v4", 16, _V4, _AVX512),
    Level("x86-64-v3-vnni", "x86-64-v3", 8, _V3 | {"avx_vnni"}, f"{_AVX2},+avxvnni"),
    Level("x86-64-v3", "x86-64-v3", 8, _V3, _AVX2),
    Level("x86-64", "x86-64", 4, frozenset(), _SSE),
)


@cache
def highest_allowed() -> Level | None:
    """The level that the environment names; None where it names none. Read once: what is compiled depends on it."""
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
