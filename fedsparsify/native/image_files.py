"""Code images on disk: written, checked as a whole, and mapped into memory.

Input: a path, and how many functions the image has. Output: the functions' addresses, and the memory that they lie in.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from zlib import crc32

import numpy as np

from .linking import ALIGNMENT

MAGIC = b"FSKERN\x00\x03"
CHECKED_FROM = 16  # bytes of magic and checksum
LOCK = ".lock"
# Never through a symbolic link, and without waiting where somebody put a pipe.
_REGULAR = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Damaged(ValueError):
    """A code image that is not as it was written."""


def _head(functions: int) -> Struct:
    """Magic, checksum of all that follows it in the file, where in the code each function begins."""
    return Struct(f"<8s{functions + 1}Q")


def _image_at(functions: int) -> int:
    """Where the code begins in the file."""
    return -(-_head(functions).size // ALIGNMENT) * ALIGNMENT


def keep(path: Path, image: bytes, starts: Sequence[int]) -> None:
    """Write a code image; a process that maps it meanwhile sees the old file or the new one."""
    from tempfile import NamedTemporaryFile

    _own_folder(path.parent)
    head = _head(len(starts))
    data = head.pack(MAGIC, 0, *starts).ljust(_image_at(len(starts)), b"\0") + image
    data = head.pack(MAGIC, crc32(memoryview(data)[CHECKED_FROM:]), *starts) + data[head.size :]
    with NamedTemporaryFile(dir=path.parent, prefix=".kernels-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def mapped(path: Path, functions: int, shipped: bool = False) -> tuple[list[int], mmap.mmap]:
    """Where the functions of a code image lie in memory, and that memory; a damaged file is refused.

    So is one that others could have written, unless it was shipped: then it is as trusted as the package's own code.
    """
    if not shipped:
        _trusted(path.parent.stat(), path.parent)
    image_at = _image_at(functions)
    with open(os.open(path, os.O_RDONLY | (0 if shipped else _REGULAR)), "rb") as file:
        status = os.fstat(file.fileno())
        if not shipped:
            _trusted(status, path)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is not a regular file")
        if status.st_size <= image_at:
            raise Damaged(f"{path} is cut off")
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    magic, checksum, *starts = _head(functions).unpack_from(memory)
    if magic != MAGIC or crc32(memoryview(memory)[CHECKED_FROM:]) != checksum:
        raise Damaged(f"{path} is damaged")
    if max(starts) >= len(memory) - image_at:
        raise Damaged(f"{path} is damaged: a function begins outside of its code")
    first = np.frombuffer(memory, np.uint8).ctypes.data + image_at
    return [first + start for start in starts], memory


def unpacked(path: Path, functions: int, shipped: bool = False) -> tuple[bytes, list[int]]:
    """The machine code of a code image on disk, and where in it each function begins."""
    addresses, memory = mapped(path, functions, shipped)
    first = np.frombuffer(memory, np.uint8).ctypes.data + _image_at(functions)
    return memory[_image_at(functions) :], [address - first for address in addresses]


@contextmanager
def alone(path: Path) -> Iterator[None]:
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
