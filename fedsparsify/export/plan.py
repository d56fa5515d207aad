"""A plan: a network prepared for batches of one shape, with its machine code, for C programs (embed/fedsparsify.h).

Input: a model file and a shape. Output: a file of little-endian 64-bit words and arrays that can be mapped anywhere:

| part | what |
|---|---|
| head | magic, CRC-32 of all from byte 16 on, and the words of `HEAD` |
| code | a code image of the engine, at a page |
| constants | tables of rows, packed weights, indices, each at a cache line |
| words | headers of programs (`lowering/encoding.py`) and jobs (`kernels/job_words.py`) |
| moved | which words are addresses: 2·index for an offset into the file, 2·index + 1 into the words |
| groups | jobs that share an arena: index of the first one's words, count, bytes of the arena |
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from ..inference import Engine
from ..inference.lowering.program import Program
from ..inference.runtime.native_calls import INFERENCE_CODE
from ..native.code_images import portable
from ..wire.artefact import load_facts

MAGIC = b"FSPLAN\x00\x01"
NUMBERS = {"x86-64-v4": 4, "x86-64-v3": 3, "x86-64": 1}  # of levels, as embed/fedsparsify.c finds them
HEAD = (
    *("size", "level", "inputs", "outputs", "code", "code_size", "entry", "words", "word_count"),
    *("moved", "moved_count", "groups", "group_count"),
)
LINE, PAGE = 64, 4096


class _File:
    """Bytes that grow; parts begin at multiples of an alignment."""

    def __init__(self) -> None:
        self.data = bytearray(16 + 8 * len(HEAD))

    def add(self, part: bytes | NDArray[Any], alignment: int = LINE) -> int:
        """Append a part; returns its offset."""
        self.data += bytes(-len(self.data) % alignment)
        at = len(self.data)
        self.data += part if isinstance(part, bytes) else part.tobytes()
        return at


def write_plan(target: Path, source: Path, shape: tuple[int, ...]) -> None:
    """Write the plan of a model file for batches of a shape."""
    if load_facts(source).get("int8") is not None:
        raise ModelError(f"{source} computes in whole numbers, which plans do not: export the float model.")
    try:
        level, code, starts = portable(INFERENCE_CODE)
    except ImportError as error:
        raise ModelError(str(error)) from error
    if level.name not in NUMBERS:
        raise ModelError(f"plans are made for {', '.join(NUMBERS)}. Received: {level.name}.")
    plan = Engine(source, threads=1, lanes=level.lanes).plan(shape)
    file, words, moved, groups = _File(), list[int](), list[int](), list[int]()
    code_at = file.add(code, PAGE)
    file.add(b"", PAGE)  # what follows is not executable
    for program, jobs in plan.alone:
        header = len(words)
        _add_header(file, program, words, moved)
        groups += [len(words), jobs.size, program.arena(1).step]
        for job in jobs.words.tolist():
            moved.append(2 * len(words) + 1)
            words += [8 * header, *job[1:]]
    head = {"level": NUMBERS[level.name], "inputs": prod(shape), "outputs": prod(plan.output_shape)}
    head |= {"code": code_at, "code_size": len(code), "entry": starts[0]}
    for name, values, each in (("word", words, 1), ("moved", moved, 1), ("group", groups, 3)):
        at = file.add(np.array(values, "<i8"))
        head |= {"moved" if name == "moved" else f"{name}s": at, f"{name}_count": len(values) // each}
    file.add(bytes(PAGE))  # kernels may read a vector past the last constant
    head["size"] = len(file.data)
    file.data[16 : 16 + 8 * len(HEAD)] = np.array([head[name] for name in HEAD], "<u8").tobytes()
    file.data[:16] = MAGIC + crc32(memoryview(file.data)[16:]).to_bytes(8, "little")
    target.write_bytes(file.data)


def _add_header(file: _File, program: Program, words: list[int], moved: list[int]) -> None:
    """A program's constants, and its header, whose addresses become offsets."""
    arrays = (program.tables[0], program.stream, program.params, program.indices)
    places = {array.ctypes.data: file.add(array) for array in arrays if array.size}
    for word in program.headers[0].tolist():
        if word in places:
            moved.append(2 * len(words))
        words.append(places.get(word, word))
