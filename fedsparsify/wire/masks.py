"""Masks as bytes: a subset of n entries as a bitmap or as gaps, and a mask as two subsets against a known one.

A subset is one byte (its kind) and, for the last three kinds, a section:

| kind | | section |
|---|---|---|
| 0 | empty | |
| 1 | everything | |
| 2 | bitmap | one bit per entry, the first in the highest bit of the first byte; unused bits are zero |
| 3 | gaps | for each member, how many entries lie between it and the last one: bytes of 255 add, a smaller one ends |
| 4 | gaps | the same for the entries that are *not* in the subset |

A difference is two subsets: the entries that the known mask kept and that are pruned now, and the entries that it had
pruned and that are kept now.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..model import Mask
from .binary import SHORT, Bytes, Reader, Writer, estimate

NONE, ALL, BITMAP, GAPS, GAPS_OF_OTHERS = range(5)


def write_subset(writer: Writer, members: Mask) -> None:
    """Write a subset as the kind with the fewest bytes."""
    count = int(np.count_nonzero(members))
    if count in (0, members.size):
        writer.buffer.append(ALL if count else NONE)
        return
    few = 2 * count <= members.size
    gaps = Writer(bytes([GAPS if few else GAPS_OF_OTHERS]))
    gaps.section(_gaps(members if few else ~members).data)
    bitmap = np.packbits(members).data
    if len(bitmap) <= SHORT or estimate(bitmap) < len(gaps.buffer):
        bits = Writer(bytes([BITMAP]))
        bits.section(bitmap)
        gaps = min(gaps, bits, key=lambda candidate: len(candidate.buffer))
    writer.buffer += gaps.buffer


def read_subset(reader: Reader, size: int, what: str) -> Mask:
    """The members among `size` entries, as a mask."""
    kind = reader.byte(f"kind of {what}", GAPS_OF_OTHERS)
    if kind in (NONE, ALL):
        return np.full(size, kind == ALL)
    if kind == BITMAP:
        packed = np.frombuffer(reader.section(what, (size + 7) // 8), np.uint8)
        bits = np.unpackbits(packed)
        if bits[size:].any():
            raise reader.fail(f"{what} sets bits beyond its {size:,} places")
        return bits[:size].view(np.bool_)
    places = _places(reader, size, what)
    members = np.full(size, kind == GAPS_OF_OTHERS)
    members[places] = kind == GAPS
    return members


def read_places(reader: Reader, size: int, what: str) -> NDArray[np.int64]:
    """The indices of the members among `size` entries, ascending. Memory grows with the members, not with `size`."""
    if reader.peek() != GAPS:
        return np.flatnonzero(read_subset(reader, size, what))
    reader.byte(f"kind of {what}", GAPS)
    return _places(reader, size, what)


def _gaps(members: Mask) -> NDArray[np.uint8]:
    """The gap before each member, in bytes that add up until one is below 255."""
    places = np.flatnonzero(members)
    gaps = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(gaps // 255 + 1) - 1
    stream = np.full(ends[-1] + 1, 255, np.uint8)
    stream[ends] = gaps % 255
    return stream


def _places(reader: Reader, size: int, what: str) -> NDArray[np.int64]:
    data: Bytes = reader.section(what, size + size // 255, exact=False)
    stream = np.frombuffer(data, np.uint8)
    if not stream.size or stream[-1] == 255:
        raise reader.fail(f"{what} ends within a gap")
    ends = np.flatnonzero(stream != 255)
    places = np.cumsum(stream, dtype=np.int64)[ends] + np.arange(ends.size)
    if places[-1] >= size:
        raise reader.fail(f"{what} names place {places[-1]:,} of {size:,}")
    return places


def write_difference(writer: Writer, mask: Mask, known: Mask) -> None:
    """Write a mask as its difference to `known`."""
    # Gathering takes most of the time, and most differences have one side at most.
    nothing = np.zeros(1, np.bool_)
    write_subset(writer, ~np.compress(known, mask) if np.any(mask < known) else nothing)
    write_subset(writer, np.compress(~known, mask) if np.any(mask > known) else nothing)


def read_difference(reader: Reader, known: Mask) -> Mask:
    """The mask that a difference to `known` describes."""
    kept = int(np.count_nonzero(known))
    died = read_subset(reader, kept, "the set of entries that died")
    born = read_subset(reader, known.size - kept, "the set of entries that came to life")
    mask = known.copy()
    if died.any():
        mask[np.flatnonzero(known)[died]] = False
    if born.any():
        mask[np.flatnonzero(~known)[born]] = True
    return mask
