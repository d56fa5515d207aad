"""From an object file to a code image: machine code that runs wherever it is mapped.

The functions call no library and write to no data of their own. All that is left for a linker is to put sections one
after the other and to fill in the distances between them. That is done here, so that no linker is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, pack_into

ALIGNMENT = 64  # the strictest that a section may ask for; code images begin at a multiple of it
RELOCATABLE_X86_64 = (b"\x7fELF\x02\x01\x01", 1, 62)
PROGRAM, SYMBOLS, RELOCATIONS, EMPTY = 1, 2, 4, 8  # kinds of sections
WRITABLE, IN_MEMORY = 1, 2  # flags of sections
DISTANCES = {2: "<i", 4: "<i", 24: "<q"}  # relocations that are filled with a distance: PC32, PLT32, PC64

_HEADER = Struct("<7s9xHH20xQ10xHHH")  # identity, type, machine, sections' place, their size, how many, names
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QQq")


class LinkError(Exception):
    """Code that cannot be made a code image; it must be compiled at every start instead."""


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    data: bytes
    link: int  # of symbols: the section with their names
    info: int  # of relocations: the section that they apply to
    alignment: int


def link(file: bytes, names: Sequence[str]) -> tuple[bytes, list[int]]:
    """The code image of an object file (ELF, x86-64), and where in it the named functions begin."""
    sections = _sections(file)
    image, places = bytearray(), {}
    for index, section in enumerate(sections):
        if not (section.flags & IN_MEMORY and section.data):
            continue
        if section.kind == EMPTY or section.flags & WRITABLE or section.alignment > ALIGNMENT:
            raise LinkError(f"section {index} holds variables, or is aligned to {section.alignment} bytes")
        if section.kind == PROGRAM:  # the others are for debuggers and exceptions
            image += bytes(-len(image) % max(section.alignment, 1))
            places[index] = len(image)
            image += section.data
    symbols = _symbols(sections, places)
    for section in sections:
        if section.kind == RELOCATIONS and section.info in places:
            for offset, info, addend in _RELOCATION.iter_unpack(section.data):
                at, (name, target) = places[section.info] + offset, symbols[info >> 32]
                if target is None or info & 0xFFFFFFFF not in DISTANCES:
                    raise LinkError(f"the code needs {name or 'something'} by relocation {info & 0xFFFFFFFF}")
                pack_into(DISTANCES[info & 0xFFFFFFFF], image, at, target + addend - at)
    found = {name: place for name, place in symbols if place is not None}
    if missing := [name for name in names if name not in found]:
        raise LinkError(f"the code has no function {missing[0]}")
    return bytes(image), [found[name] for name in names]


def _sections(file: bytes) -> list[_Section]:
    identity, kind, machine, start, size, count, _ = _HEADER.unpack_from(file)
    if (identity, kind, machine) != RELOCATABLE_X86_64 or size != _SECTION.size:
        raise LinkError("it is no object file for x86-64")
    sections = []
    for index in range(count):
        _, kind, flags, _, offset, length, other, info, alignment, _ = _SECTION.unpack_from(file, start + index * size)
        data = bytes(length) if kind == EMPTY else file[offset : offset + length]
        sections.append(_Section(kind, flags, data, other, info, alignment))
    return sections


def _symbols(sections: Sequence[_Section], places: dict[int, int]) -> list[tuple[str, int | None]]:
    """Name and offset in the code image of every symbol, in the file's order; None for what is not in it."""
    found: list[tuple[str, int | None]] = []
    for section in sections:
        if section.kind == SYMBOLS:
            names = sections[section.link].data
            for start, _, _, home, value, _ in _SYMBOL.iter_unpack(section.data):
                name = names[start : names.index(b"\0", start)].decode()
                found.append((name, places[home] + value if home in places else None))
    return found
