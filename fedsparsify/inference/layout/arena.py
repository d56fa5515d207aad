"""Where the values of a level lie in the arena: close together, since what the nearest caches hold is fast."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ..frontend.steps import Flatten, Pool
from .storage import Level, Place

LINE_FLOATS = 16  # of a cache line


def allocate(level: Level, places: dict[str, Place], floats: int, workers: int, pools: Mapping[str, Pool]) -> int:
    """Give each value of a level an offset from `floats` on; returns the first float behind them.

    A value may take the room of one that nobody reads any more. Where lanes are whole images nobody rewrites the
    zeros around a value, so that its room stays its own; the same where several workers run at once. Then each has
    a band of its own, or a copy of what has a halo. Convolutions that do the pool behind them too need no room.
    """
    free: list[tuple[int, int]] = []  # (size, offset)

    def take(name: str) -> None:
        nonlocal floats
        place = places[name]
        size = -(-place.size // LINE_FLOATS) * LINE_FLOATS
        if workers > 1 and (place.bands > 1 or place.haloed):
            place.apart = size
            size *= workers
        fitting = [room for room in sorted(free) if room[0] >= size]
        if fitting:
            free.remove(fitting[0])
            rooms[name] = fitting[0]
        else:
            rooms[name] = size, floats
            floats += size
        place.offset = rooms[name][1]

    rooms: dict[str, tuple[int, int]] = {}
    steps = {step.name: step for step in level.steps}
    for name in places:
        if name not in steps:
            take(name)
    reads = {step.name: step.inputs for step in level.steps if step.name not in pools}
    reads |= {pool.name: steps[name].inputs for name, pool in pools.items() if name in steps}
    last_read = {name: k for k, names in enumerate(reads.values()) for name in names}
    for k, (name, inputs) in enumerate(reads.items()):
        source = places[inputs[0]]
        if isinstance(steps[name], Flatten) and source.channel == prod(source.block) * source.lanes:
            places[name].offset = source.offset  # a view
            continue
        take(name)
        if workers == 1 and level.grid != (1, 1):
            free += [rooms[read] for read in dict.fromkeys(inputs) if last_read[read] == k]
    return floats
