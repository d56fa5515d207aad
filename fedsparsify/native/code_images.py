"""Compiled functions as Python calls them: mapped from a code image, shipped or kept on disk, else compiled now.

Input: a `CodeImage`, which names the functions and their sources, and a vector width. Output: the functions.

Numba takes 60 MB to import and seconds to compile. The result is some 100 KB of machine code that needs neither numba
nor LLVM, so that it is made a code image (see linking.py). Wheels for Linux on x86-64 have one for each level of
processors (levels.py). Where there is none, or where a source was edited, the kernels are compiled once and kept.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from zlib import adler32, crc32

from .image_files import LOCK, Damaged, alone, keep, mapped, unpacked
from .levels import VARIABLE, Level, highest_allowed
from .linking import LinkError
from .machine import LINUX_X86_64, levels_here, processor

PACKAGE = Path(__file__).parent.parent
SHIPPED = PACKAGE / "native" / "images"  # in wheels alone
SHARED = (
    "codegen",
    "compiled",
    "exponential",
    "levels",
    "lines",
    "linking",
    "pointers",
    "simd",
)  # sources of this package
SETTINGS = (VARIABLE, "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "NUMBA_ENABLE_AVX")
_compiling = Lock()

Function = Callable[..., object]  # of 64-bit words, most of them addresses


@dataclass(frozen=True)
class CodeImage:
    """Functions that are compiled together and kept as one code image."""

    name: str  # of the code image's file
    module: str  # its `entries(lanes)` are the functions; importing it takes numba
    words: tuple[int, ...]  # that each function takes
    sources: tuple[str, ...]  # files and folders that the functions are made of, besides those of this package

    def __call__(self, lanes: int) -> list[Function]:
        """The functions for a vector width; ImportError where there is no code image and no compiler."""
        with _compiling:
            return _functions(self, lanes)

    @property
    def files(self) -> list[Path]:
        """The files of `sources`."""
        paths = [PACKAGE / name for name in self.sources]
        return [file for path in paths for file in (sorted(path.glob("[!_]*.py")) if path.is_dir() else [path])]

    def shipped_name(self, level: str) -> str:
        """The file of the code image that wheels have for a level."""
        return f"{self.name}-{level}-{sources_of(self)}"


@cache
def _functions(code: CodeImage, lanes: int) -> list[Function]:
    shipped = [SHIPPED / code.shipped_name(level.name) for level in levels_here() if level.lanes == lanes]
    for path in shipped if LINUX_X86_64 else []:
        if made := _mapped(code, path, shipped=True):
            return made
    sources, compilers = made_of(code)
    name = f"{code.name}-{lanes}-{sources}"
    if compilers is None:  # a code image made by any compiler will do
        found = [path for folder in _folders() for path in sorted(folder.glob(f"{name}-*"))]
        paths = [path for path in found if path.suffix != LOCK]
    else:
        paths = [folder / f"{name}-{compilers}" for folder in _folders()]
    for path in paths:
        if made := _mapped(code, path):
            return made
    if compilers is None:
        raise ImportError(
            f"this installation has no {code.name} kernels for vectors of {lanes} floats that fit its sources, "
            "and no compiler to make them: pip install 'fedsparsify[compile]'."
        )
    for path in paths:
        with suppress(OSError), alone(path):
            return _mapped_or_compiled(code, lanes, path)
    return _compiled(code, lanes)


def portable(code: CodeImage) -> tuple[Level, bytes, list[int]]:
    """Machine code for a whole level of processors: the level, the code, and where in it each function begins.

    A code image that was compiled for the processor at hand is no such thing; then ImportError.
    """
    for level in levels_here():
        with suppress(OSError, ValueError):
            return level, *unpacked(SHIPPED / code.shipped_name(level.name), len(code.words), shipped=True)
    if (asked := highest_allowed()) is not None:
        code(asked.lanes)
        name = "-".join([code.name, str(asked.lanes), *map(str, made_of(code))])
        for folder in _folders():
            with suppress(OSError, ValueError):
                return asked, *unpacked(folder / name, len(code.words))
    raise ImportError(
        f"the {code.name} kernels here are compiled for this processor alone: "
        f"set the environment variable {VARIABLE}, to x86-64-v3 for instance, to make them for others too."
    )


def _mapped(code: CodeImage, path: Path, shipped: bool = False) -> list[Function] | None:
    """The functions of a code image on disk; None where it is absent, not to be trusted or damaged."""
    try:
        return _callable(code, *mapped(path, len(code.words), shipped))
    except Damaged as error:
        _say(f"{error}. The {code.name} kernels are not taken from it.")
    except (OSError, ValueError):
        pass
    return None


def _mapped_or_compiled(code: CodeImage, lanes: int, path: Path) -> list[Function]:
    """What another process has kept while this one waited, else compiled now and kept."""
    with suppress(OSError, ValueError):
        return _callable(code, *mapped(path, len(code.words)))
    return _compiled(code, lanes, path)


def _compiled(code: CodeImage, lanes: int, path: Path | None = None) -> list[Function]:
    """The functions, compiled now; kept at `path`, and mapped from there, where that can be."""
    from .codegen import Code

    made = Code(code, lanes)
    if path is not None:
        with suppress(LinkError, OSError, ValueError):
            keep(path, *made.image())
            return _callable(code, *mapped(path, len(code.words)))
    return _callable(code, made.addresses(), made)


def _callable(code: CodeImage, addresses: Sequence[int], memory: object) -> list[Function]:
    """Functions at addresses; `memory` holds what they point at."""
    held = memory, (unused := ctypes.create_string_buffer(16))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))  # threads may run it while the interpreter ends
    made: list[Function] = []
    for words, address in zip(code.words, addresses, strict=True):
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * words)
        # Numba hands results and exceptions back through two addresses first; there are none.
        made.append(partial(kind(address), ctypes.addressof(unused), ctypes.addressof(unused) + 8))
    return made


def _say(line: str) -> None:
    """A line for the user; logging is loaded only where there is one."""
    import logging

    logging.getLogger("fedsparsify").warning(line)


def _folders() -> list[Path]:
    """Where code images are kept: beside the package, else in the user's cache, in a folder of the user alone."""
    folders = [Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # a user without a home
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsparsify/kernels")
    return folders


@cache
def sources_of(code: CodeImage) -> str:
    """A checksum of the functions' sources."""
    paths = [*code.files, *(PACKAGE / "native" / f"{name}.py" for name in SHARED)]
    return _digest([path.read_bytes() for path in paths])


@cache
def made_of(code: CodeImage) -> tuple[str, str | None]:
    """What a kept image depends on: the functions' sources and the processor; numba and LLVM, or None without them."""
    specs = [find_spec(package) for package in ("numba", "llvmlite")]
    places = [Path(spec.origin).parent / "_version.py" for spec in specs if spec and spec.origin]
    settings = repr([os.environ.get(name) for name in SETTINGS]).encode()
    compilers = _digest([settings, *(path.read_bytes() for path in places)]) if len(places) == 2 else None
    return _digest([processor().encode(), sources_of(code).encode()]), compilers


def _digest(parts: Sequence[bytes]) -> str:
    """Two checksums, as hashlib would load OpenSSL."""
    text = b"\n".join(parts)
    return f"{crc32(text):08x}{adler32(text):08x}"
