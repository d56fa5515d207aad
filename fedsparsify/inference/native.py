"""The kernels as Python calls them: mapped from an image that was kept on disk, else compiled now.

Numba takes 60 MB to import and seconds to compile. What comes out is some 100 KB of machine code that needs neither
numba nor LLVM, so that it is kept (see linking.py), and later processes start without them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from threading import Lock
from zlib import adler32, crc32

import numpy as np

from ..errors import ModelError
from .linking import ALIGNMENT, LinkError
from .machine import processor

WORDS = (8, 2)  # that the functions take: serve, post
MAGIC = b"FSKERN\x00\x01"
HEAD = Struct("<8s3Q")  # magic, where the functions begin, checksum of the image
SOURCES = (
    *("codegen", "compiled", "curves", "dense_kernels", "dense_simd", "kernels", "linking", "memory", "operations"),
    *("simd", "small_simd", "vectors"),
)
NUMBA_SETTINGS = ("CPU_NAME", "CPU_FEATURES", "OPT", "ENABLE_AVX")
IMAGE_AT = -(-HEAD.size // ALIGNMENT) * ALIGNMENT
_compiling = Lock()


class Native:
    """The kernels for one width of vectors. Arguments are 64-bit words, most of them addresses; see kernels.py."""

    def __init__(self, addresses: Sequence[int], memory: object) -> None:
        """`memory` holds what the addresses point at."""
        self._memory = memory, (unused := ctypes.create_string_buffer(16))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))  # helpers may run it while the interpreter ends
        made: list[Callable[..., object]] = []
        for words, address in zip(WORDS, addresses, strict=True):
            kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * words)
            # Numba hands results and exceptions back through two addresses first; there are none.
            made.append(partial(kind(address), ctypes.addressof(unused), ctypes.addressof(unused) + 8))
        self._serve, self.post = made

    def execute(self, program: int, arena: int, x: int, y: int, images: int, gate: int = 0, comings: int = 0) -> None:
        """Run a program over some images."""
        self._serve(program, arena, x, y, images, gate, comings, 0)

    def assist(self, program: int, arena: int, mail: int, gate: int) -> None:
        """Take jobs from a mailbox until none comes for a while."""
        self._serve(program, arena, 0, 0, 0, gate, 0, mail)


def native_code(lanes: int) -> Native:
    """The kernels for a width; compiled where no image of them was kept."""
    with _compiling:
        return _native_code(lanes)


@cache
def _native_code(lanes: int) -> Native:
    kernels, compilers = made_of()
    if compilers is None:  # an image made by any will do
        paths = [path for folder in _folders() for path in sorted(folder.glob(f"kernels-{lanes}-{kernels}-*"))]
    else:
        paths = [folder / f"kernels-{lanes}-{kernels}-{compilers}" for folder in _folders()]
    for path in paths:
        with suppress(OSError, ValueError):
            return mapped(path)
    if compilers is None:
        raise ModelError("inference compiles its kernels once per machine: pip install 'fedsparsify[infer]'.")
    for path in paths:
        with suppress(OSError), _alone(path):
            return _mapped_or_compiled(lanes, path)
    return _compiled(lanes)


def _mapped_or_compiled(lanes: int, path: Path) -> Native:
    """What another process has kept while this one waited, else compiled now and kept."""
    with suppress(OSError, ValueError):
        return mapped(path)
    return _compiled(lanes, path)


def _compiled(lanes: int, path: Path | None = None) -> Native:
    """The kernels, compiled; kept at `path`, and mapped from there, where that can be."""
    from .codegen import Code

    code = Code(lanes)
    if path is not None:
        with suppress(LinkError, OSError, ValueError):
            keep(path, *code.image())
            return mapped(path)
    return Native(code.addresses(), code)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process compiles the same; OSError where nothing can be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        with suppress(OSError):
            Path(file.name).unlink()


def keep(path: Path, image: bytes, places: Sequence[int]) -> None:
    """Write an image; whoever maps it meanwhile sees the old file or the new one."""
    from tempfile import NamedTemporaryFile

    path.parent.mkdir(parents=True, exist_ok=True)
    head = HEAD.pack(MAGIC, *places, crc32(image))
    with NamedTemporaryFile(dir=path.parent, prefix=".kernels-", delete=False) as file:
        try:
            file.write(head.ljust(IMAGE_AT, b"\0") + image)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def mapped(path: Path) -> Native:
    """The functions of an image on disk. A file that is damaged, or that others could have written, is refused."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
            raise ValueError(f"{path} could have been written by others")
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    if len(memory) <= IMAGE_AT:
        raise ValueError(f"{path} is cut off")
    magic, *places, checksum = HEAD.unpack_from(memory)
    if magic != MAGIC or crc32(memoryview(memory)[IMAGE_AT:]) != checksum:
        raise ValueError(f"{path} is damaged")
    start = np.frombuffer(memory, np.uint8).ctypes.data + IMAGE_AT
    return Native([start + place for place in places], memory)


def _folders() -> list[Path]:
    """Where images are kept: beside the package, else in the user's cache."""
    folders = [Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # a user without a home
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsparsify")
    return folders


@cache
def made_of() -> tuple[str, str | None]:
    """What an image depends on: the kernels' sources and the processor; numba and LLVM, or None without them."""
    folder = Path(__file__).parent
    sources = [processor().encode(), *((folder / f"{name}.py").read_bytes() for name in SOURCES)]
    specs = [find_spec(package) for package in ("numba", "llvmlite")]
    places = [Path(spec.origin).parent / "_version.py" for spec in specs if spec and spec.origin]
    settings = repr([os.environ.get(f"NUMBA_{name}") for name in NUMBA_SETTINGS]).encode()
    compilers = _digest([settings, *(path.read_bytes() for path in places)]) if len(places) == 2 else None
    return _digest(sources), compilers


def _digest(parts: Sequence[bytes]) -> str:
    """Two checksums, as hashlib would load OpenSSL."""
    text = b"\n".join(parts)
    return f"{crc32(text):08x}{adler32(text):08x}"


def yield_address() -> int:
    """Where the function lies that gives the core to another thread."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
