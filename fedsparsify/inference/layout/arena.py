"""The arena: where the values of a level lie, close together, so that they stay in the nearest caches.

Input: a level and the storage of its values. Output: an offset in the arena for each storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ..frontend.steps import Add, Flatten, Pool, Step
from .levels import Level
from .pools import Included
from .storage import Storage
from .strips import Chain

LINE_FLOATS = 16  # of a cache line


def place_strips(
    levels: Sequence[Level],
    storages: Sequence[Mapping[str, Storage]],
    chains: Sequence[Sequence[Chain]],
    floats: int,
    workers: int,
) -> int:
    """Give the strips of all chains the same memory, one piece per worker, from `floats` on; returns its end.

    No chain needs another's strips, and no worker another's. Where lanes are whole images, the zeros around a value
    must stay, so that `allocate` gives strips memory of their own.
    """
    pieces = []
    for level, values, found in zip(levels, storages, chains, strict=True):
        for chain in found if level.grid != (1, 1) else ():
            end = 0
            for name in chain.between:
                values[name].offset = floats + end
                end += _lines(values[name].size)
            pieces.append(([values[name] for name in chain.between], end))
    size = max((end for _, end in pieces), default=0)
    for strips, _ in pieces:
        for storage in strips:
            storage.worker_step = size if workers > 1 else 0
    return floats + workers * size


def _in_place(step: Step, level: Level, storages: Mapping[str, Storage]) -> bool:
    """Whether a step scales an image by a gate, and may write over it: only means read the image besides.

    Each worker reads what it then writes, and what others read of the image they have read before the gate was made.
    """
    if level.grid == (1, 1) or not isinstance(step, Add) or not step.gated:
        return False
    source, target = storages[step.inputs[0]], storages[step.name]
    alike = source.channel == target.channel and source.before == target.before and source.after == target.after
    readers = [other for other in level.steps if step.inputs[0] in other.inputs and other is not step]
    means = all(isinstance(other, Pool) and other.name in level.gates for other in readers)
    return alike and means and bool(readers) and source.haloed == target.haloed is False and source.bands == 1


def _lines(floats: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-floats // LINE_FLOATS) * LINE_FLOATS


def allocate(
    level: Level,
    storages: dict[str, Storage],
    floats: int,
    workers: int,
    included: Mapping[str, Included],
    chains: Sequence[Chain] = (),
) -> int:
    """Give each value of a level an offset from `floats` on; returns the first float after them.

    A value may reuse the memory of one that no later step reads, with two exceptions. Where lanes are whole images, the
    zeros around a value are written once and must stay. Where several workers run, one may still read what another no
    longer needs; each has a band of its own, or a copy of what has a halo, of a gate or of a strip. The output of a
    convolution that includes the step after it needs no memory. What a chain of strips reads and makes is in use until
    its end.
    """
    free: list[tuple[int, int]] = []  # (size, offset)

    def take(name: str) -> None:
        nonlocal floats
        storage = storages[name]
        size = _lines(storage.size)
        if workers > 1 and (storage.bands > 1 or storage.haloed or storage.private or storage.strip):
            storage.worker_step = size
            size *= workers
        fitting = [space for space in sorted(free) if space[0] >= size]
        if fitting:
            free.remove(fitting[0])
            taken[name] = fitting[0]
        else:
            taken[name] = size, floats
            floats += size
        storage.offset = taken[name][1]

    taken: dict[str, tuple[int, int]] = {}
    steps = {step.name: step for step in level.steps}
    for name in storages:
        if name not in steps:
            take(name)
    reads = {step.name: step.inputs for step in level.steps if step.name not in included}
    reads |= {step.name: steps[name].inputs for name, step in included.items() if name in steps}
    ends = {step.name: chain.steps[-1].name for chain in chains for step in chain.steps}
    numbers = {name: k for k, name in enumerate(reads)}
    last_read = {read: numbers[ends.get(name, name)] for name, names in reads.items() for read in names}
    for k, (name, inputs) in enumerate(reads.items()):
        source = storages[inputs[0]] if inputs else storages[name]
        if isinstance(steps[name], Flatten) and source.channel == prod(source.block) * source.lanes:
            storages[name].offset = source.offset  # a view
            continue
        if _in_place(steps[name], level, storages) and last_read[inputs[0]] == k and inputs[0] in taken:
            storages[name].offset, storages[name].worker_step = source.offset, source.worker_step
            taken[name] = taken.pop(inputs[0])
        elif level.grid == (1, 1) or not storages[name].strip:
            take(name)
        if workers == 1 and level.grid != (1, 1):
            free += [taken[read] for read, last in last_read.items() if last == k and read in taken]
    return floats
