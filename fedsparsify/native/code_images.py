"""Compiled functions as Python calls them: mapped from a code image that was kept on disk, else compiled now.

Input: a `CodeImage`, which names the functions and their sources, and a vector width. Output: the functions.

Numba takes 60 MB to import and seconds to compile. The result is some 100 KB of machine code that needs neither numba
nor LLVM, so that it is kept as a code image (see linking.py), and later processes start without them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from threading import Lock
from zlib import adler32, crc32

import numpy as np

from .linking import ALIGNMENT, LinkError
from .machine import processor

MAGIC = b"FSKERN\x00\x03"
PACKAGE = Path(__file__).parent.parent
SHARED = ("codegen", "compiled", "exponential", "lines", "linking", "pointers", "simd")  # sources of this package
NUMBA_SETTINGS = ("CPU_NAME", "CPU_FEATURES", "OPT", "ENABLE_AVX")
CHECKED_FROM = 16  # bytes of magic and checksum
LOCK = ".lock"
# Never through a symbolic link, and without waiting where somebody put a pipe.
_REGULAR = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_compiling = Lock()

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH

Function = Callable[..., object]  # of 64-bit words, most of them addresses


class Damaged(ValueError):
    """A code image that is not as it was written."""


@dataclass(frozen=True)
class CodeImage:
    """Functions that are compiled together and kept as one code image."""

    name: str  # of the code image's file
    module: str  # its `entries(lanes)` are the functions; importing it takes numba
    words: tuple[int, ...]  # that each function takes
    sources: tuple[str, ...]  # files and folders that the functions are made of, besides those of this package

    def __call__(self, lanes: int) -> list[Function]:
        """The functions for a vector width; ImportError where no code image was kept and there is no compiler."""
        with _compiling:
            return _functions(self, lanes)

    @property
    def files(self) -> list[Path]:
        """The files of `sources`."""
        paths = [PACKAGE / name for name in self.sources]
        return [file for path in paths for file in (sorted(path.glob("[!_]*.py")) if path.is_dir() else [path])]

    @property
    def head(self) -> Struct:
        """Magic, checksum of all that follows it in the file, where in the code each function begins."""
        return Struct(f"<8s{len(self.words) + 1}Q")

    @property
    def image_at(self) -> int:
        """Where the code begins in the file."""
        return -(-self.head.size // ALIGNMENT) * ALIGNMENT


@cache
def _functions(code: CodeImage, lanes: int) -> list[Function]:
    sources, compilers = made_of(code)
    name = f"{code.name}-{lanes}-{sources}"
    if compilers is None:  # a code image made by any compiler will do
        found = [path for folder in _folders() for path in sorted(folder.glob(f"{name}-*"))]
        paths = [path for path in found if path.suffix != LOCK]
    else:
        paths = [folder / f"{name}-{compilers}" for folder in _folders()]
    for path in paths:
        try:
            return mapped(code, path)
        except Damaged as error:
            _say(f"{error}. The {code.name} kernels are compiled again.")
        except (OSError, ValueError):
            continue
    if compilers is None:
        raise ImportError(f"the {code.name} kernels are compiled once per machine, which needs numba")
    for path in paths:
        with suppress(OSError), _alone(path):
            return _mapped_or_compiled(code, lanes, path)
    return _compiled(code, lanes)


def _mapped_or_compiled(code: CodeImage, lanes: int, path: Path) -> list[Function]:
    """What another process has kept while this one waited, else compiled now and kept."""
    with suppress(OSError, ValueError):
        return mapped(code, path)
    return _compiled(code, lanes, path)


def _compiled(code: CodeImage, lanes: int, path: Path | None = None) -> list[Function]:
    """The functions, compiled now; kept at `path`, and mapped from there, where that can be."""
    from .codegen import Code

    made = Code(code, lanes)
    if path is not None:
        with suppress(LinkError, OSError, ValueError):
            keep(code, path, *made.image())
            return mapped(code, path)
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


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process compiles the same; OSError where nothing can be written."""
    _own_folder(path.parent)
    lock = path.with_suffix(LOCK)
    file = os.open(lock, os.O_RDWR | os.O_CREAT | _REGULAR, 0o600)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not _ours(status):
            raise PermissionError(f"{lock} is not a file of this user")
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        with suppress(OSError):
            lock.unlink()
    finally:
        os.close(file)


def _own_folder(folder: Path) -> None:
    """Make a folder that only this user writes to; PermissionError where others may."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _trusted(folder.stat(), folder)


def _ours(status: os.stat_result) -> bool:
    """Whether a file is this user's or the administrator's."""
    return not hasattr(os, "getuid") or status.st_uid in (0, os.getuid())


def _trusted(status: os.stat_result, path: Path) -> None:
    """Refuse what other users could have written: code from there must not run."""
    if not _ours(status) or status.st_mode & OTHERS_MAY_WRITE:
        raise PermissionError(f"{path} could have been written by others (mode {stat.filemode(status.st_mode)})")


def keep(code: CodeImage, path: Path, image: bytes, starts: Sequence[int]) -> None:
    """Write a code image; a process that maps it meanwhile sees the old file or the new one."""
    from tempfile import NamedTemporaryFile

    _own_folder(path.parent)
    data = code.head.pack(MAGIC, 0, *starts).ljust(code.image_at, b"\0") + image
    data = code.head.pack(MAGIC, crc32(memoryview(data)[CHECKED_FROM:]), *starts) + data[code.head.size :]
    with NamedTemporaryFile(dir=path.parent, prefix=".kernels-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def mapped(code: CodeImage, path: Path) -> list[Function]:
    """The functions of a code image on disk. A file that is damaged, or that others could have written, is refused."""
    _trusted(path.parent.stat(), path.parent)
    with open(os.open(path, os.O_RDONLY | _REGULAR), "rb") as file:
        status = os.fstat(file.fileno())
        _trusted(status, path)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is not a regular file")
        if status.st_size <= code.image_at:
            raise Damaged(f"{path} is cut off")
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    magic, checksum, *starts = code.head.unpack_from(memory)
    if magic != MAGIC or crc32(memoryview(memory)[CHECKED_FROM:]) != checksum:
        raise Damaged(f"{path} is damaged")
    if max(starts) >= len(memory) - code.image_at:
        raise Damaged(f"{path} is damaged: a function begins outside of its code")
    first = np.frombuffer(memory, np.uint8).ctypes.data + code.image_at
    return _callable(code, [first + start for start in starts], memory)


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
def made_of(code: CodeImage) -> tuple[str, str | None]:
    """What a code image depends on: the functions' sources and the processor; numba and LLVM, or None without them."""
    paths = [*code.files, *(PACKAGE / "native" / f"{name}.py" for name in SHARED)]
    sources = [processor().encode(), *(path.read_bytes() for path in paths)]
    specs = [find_spec(package) for package in ("numba", "llvmlite")]
    places = [Path(spec.origin).parent / "_version.py" for spec in specs if spec and spec.origin]
    settings = repr([os.environ.get(f"NUMBA_{name}") for name in NUMBA_SETTINGS]).encode()
    compilers = _digest([settings, *(path.read_bytes() for path in places)]) if len(places) == 2 else None
    return _digest(sources), compilers


def _digest(parts: Sequence[bytes]) -> str:
    """Two checksums, as hashlib would load OpenSSL."""
    text = b"\n".join(parts)
    return f"{crc32(text):08x}{adler32(text):08x}"
