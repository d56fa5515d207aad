"""Randomness that nobody can repeat, from the operating system: cohorts and noise of private runs.

The run's seed is known to many. A reader who knows the cohort or the noise can undo the protection.
"""

from __future__ import annotations

import os

import numpy as np

from .robust import Doubles

CHUNK = 262_144
SUMMED = 4  # normal numbers per value: a sum hides which floats a single one can reach (Holohan and Braghin, 2021)


def poisson_cohort(clients: int, rate: float) -> list[int]:
    """Every client with probability `rate`, independently of the others."""
    drawn = _uniform(clients)
    return np.flatnonzero(drawn < rate).tolist() if rate < 1 else list(range(clients))


def normal(count: int) -> Doubles:
    """Independent standard normal numbers."""
    made = np.empty(count)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        made[start : start + size] = sum(_box_muller(size) for _ in range(SUMMED)) / SUMMED**0.5
    return made


def _box_muller(count: int) -> Doubles:
    half = (count + 1) // 2
    radius, angle = np.sqrt(-2 * np.log1p(-_uniform(half))), 2 * np.pi * _uniform(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _uniform(count: int) -> Doubles:
    """Numbers in [0, 1) of 53 random bits each."""
    bits = np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
