"""Where the values of a level lie in the arena: close together, since what the nearest caches hold is fast."""

from __future__ import annotations

from math import prod

from .plan import Level, Place
from .steps import Flatten

LINE_FLOATS = 16  # of a cache line


def allocate(level: Level, places: dict[str, Place], floats: int, reuse: bool) -> int:
    """Give each value of a level an offset from `floats` on; returns the first float behind them.

    With `reuse`, a value may take the room of one that nobody reads any more. Where lanes are whole images nobody
    rewrites the zeros around a value, so that its room stays its own; the same where several workers run at once.
    """
    free: list[tuple[int, int]] = []  # (size, offset)

    def take(name: str) -> None:
        nonlocal floats
        place = places[name]
        size = -(-place.size // LINE_FLOATS) * LINE_FLOATS
        fitting = [room for room in sorted(free) if room[0] >= size]
        if fitting:
            free.remove(fitting[0])
            rooms[name] = fitting[0]
        else:
            rooms[name] = size, floats
            floats += size
        place.offset = rooms[name][1]

    rooms: dict[str, tuple[int, int]] = {}
    made = {step.name for step in level.steps}
    for name in places:
        if name not in made:
            take(name)
    last_read = {name: k for k, step in enumerate(level.steps) for name in step.inputs}
    for k, step in enumerate(level.steps):
        source = places[step.inputs[0]]
        if isinstance(step, Flatten) and source.channel == prod(source.block) * source.lanes:
            places[step.name].offset = source.offset  # a view
            continue
        take(step.name)
        if reuse and level.grid != (1, 1):
            free += [rooms[name] for name in dict.fromkeys(step.inputs) if last_read[name] == k]
    return floats
