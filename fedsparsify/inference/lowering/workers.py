"""What each of several workers has of a value, and where they must wait for each other.

A value with a halo is kept once per worker, and each writes only its own copy: what another core wrote takes long to
read, so that a worker fetches the others' pixels once, without their halos, and makes those itself.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..frontend.steps import Conv, Pair
from ..layout.storage import Place
from .layers import Recipe
from .rows import Kind

EVEN_SHARE = 16  # channels are divided among workers in multiples of this, as dense kernels write so many
WEIGHT_CYCLES = 2.5  # of a weight besides its products
CROSSING_CYCLES = 36  # of a cache line that another core wrote
HALO_CYCLES = 6  # of a line of a halo
VISIT_WEIGHTS = 4  # that take as long as a visit of the sparse kernel does besides


class Lack(NamedTuple):
    """Channels that a worker must fetch from another."""

    worker: int
    other: int
    first: int
    last: int


class Workers:
    """The rows of every worker. Bounds, one more than there are workers, say how a value's channels are divided."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self.comings = 0
        self._fresh: dict[int, list[int]] = {}  # values written since the workers last met, and who wrote what
        self._held: dict[int, list[int]] = {}  # values of which each worker's copy has only what it wrote itself

    def gather(self) -> None:
        """Let all wait for each other."""
        self.comings += self.count
        for rows in self.rows:
            rows.append({"kind": Kind.MEET, "count": self.comings})
        self._fresh.clear()

    def wrote(self, place: Place, bounds: list[int]) -> None:
        """Note who wrote what. Of its band each reads only what it wrote itself, seams apart."""
        if place.bands == 1:
            self._fresh[id(place)] = bounds
            if place.apart:
                self._held[id(place)] = bounds

    def lacking(self, place: Place, bounds: list[int], whole: bool) -> list[Lack]:
        """Let the workers meet where one reads what another may still be writing; what they must fetch then.

        Each reads the channels that it makes, or the `whole` value.
        """
        written = (self._held if place.apart else self._fresh).get(id(place))
        if not written or (not whole and written == bounds) or (alone(written) and alone(bounds)):
            return []
        if id(place) in self._fresh:
            self.gather()
        if not place.apart:
            return []
        del self._held[id(place)]
        pairs = [(worker, other) for worker in range(self.count) for other in range(self.count) if worker != other]
        parts = list(pairwise(written))
        return [Lack(worker, other, *parts[other]) for worker, other in pairs if parts[other][0] < parts[other][1]]

    def fresh(self, place: Place) -> bool:
        """Whether somebody may still be writing a value."""
        return id(place) in self._fresh

    def everywhere(self, place: Place) -> bool:
        """Whether each worker has, or will have, all channels of a value in its own copy."""
        return place.apart > 0 and id(place) not in self._held

    def bounds(self, place: Place) -> list[int]:
        """How a value's channels are divided: as they were written, else evenly."""
        channels = place.shape[0]
        even = [min(channels, -(-channels * k // (EVEN_SHARE * self.count)) * EVEN_SHARE) for k in range(self.count)]
        return self._held.get(id(place)) or self._fresh.get(id(place)) or [*even, channels]

    def all_channels(self, place: Place) -> list[Pair]:
        """The same for each: everything."""
        return [(0, place.shape[0])] * self.count

    def first_alone(self, place: Place) -> list[int]:
        """Bounds that leave all channels to the first worker."""
        return [0, *[place.shape[0]] * self.count]

    def fair_bounds(self, step: Conv, source: Place, target: Place, recipe: Recipe) -> list[int]:
        """Divide the output channels so that each worker gets about as much to do; in groups, all go to one.

        So they do where a worker would wait longer for what others wrote than it takes to make the rest itself.
        """
        channels = target.shape[0]
        if self.count == 1 or step.groups > 1:
            return self.first_alone(target)
        if recipe.kind in (Kind.DENSE, Kind.WINOGRAD):
            load, share = np.arange(1, channels + 1), EVEN_SHARE
        else:
            load, share = np.cumsum(step.weight.per_output() + VISIT_WEIGHTS * recipe.blocks), 1
            if load[-1] * (prod(target.block) + WEIGHT_CYCLES) < _crossing(step, source):
                return self.first_alone(target)
        cuts = [int(np.searchsorted(load, load[-1] * k / self.count)) for k in range(1, self.count)]
        return [0, *(min(channels, round(cut / share) * share) for cut in cuts), channels]


def _crossing(step: Conv, source: Place) -> float:
    """Cycles that it takes to read a value that others wrote."""
    lines = source.size // source.lanes
    if not source.apart:
        return CROSSING_CYCLES * min(lines, step.weight.places.size)
    inner = source.shape[0] * prod(source.block)
    return CROSSING_CYCLES * inner + HALO_CYCLES * (lines - inner)


def alone(bounds: list[int]) -> bool:
    """Whether all channels are the first worker's."""
    return bounds[1] == bounds[-1]
