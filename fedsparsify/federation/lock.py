"""One process per folder: a lock that ends with its process, and names its holder to a second one."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ..errors import RunError
from ..notices import notice

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
RETRY_SECONDS = 0.2
WRITTEN_AT_MOST = 300  # bytes


@contextmanager
def held(folder: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Make `folder` and hold it for this process; a second holder gets an error that names the first.

    The operating system gives the lock back when the process ends, however it ends. With `wait_seconds`, wait that
    long for a holder that is about to end.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made: {error.strerror or error}.") from error
    path, until = folder / NAME, time.monotonic() + wait_seconds
    while (descriptor := _take(path)) is None:
        if time.monotonic() >= until:
            raise RunError(
                f"{folder} is in use by {_holder(path)}. Only one process may write to it: wait until that one has "
                f"ended, or end it, and try again; or choose another --out."
            )
        time.sleep(RETRY_SECONDS)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is given back: the file may be another's afterwards
        os.close(descriptor)


def _take(path: Path) -> int | None:
    """The descriptor of the locked file; None where another process has it."""
    descriptor = _open(path)
    try:
        if fcntl is None:
            notice(f"{path.parent} is not locked on this system: use it from one process only.")
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(path, descriptor):  # its holder removed it between our opening and our locking it
            os.close(descriptor)
            return _take(path)
        os.ftruncate(descriptor, 0)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        what = "its file system has no locks" if error.errno in _WITHOUT_LOCKS else error.strerror or str(error)
        raise RunError(
            f"{path.parent} cannot be locked against other processes: {what}. Choose an --out on a local disk."
        ) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def _open(path: Path) -> int:
    """The lock's file, opened or made; nothing that was put in its place is written to."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
        if path.is_symlink() or path.is_dir():
            raise RunError(f"{path} must be a plain file of ours, and is not: remove it.") from error
        raise RunError(
            f"{path.parent} cannot be written to: {error.strerror or error}. "
            f"Make it writable (it must be locked), or choose another --out."
        ) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise RunError(f"{path} must be a plain file of ours, and is not: remove it.")
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """What the holder wrote about itself, if it is what we write."""
    try:
        with path.open(errors="replace") as file:
            text = file.read(WRITTEN_AT_MOST)
    except OSError:
        text = ""
    known = re.fullmatch(r"(process \d{1,20} on [\w.-]{1,255}) since ([\d :+-]{1,40})\n", text, re.ASCII)
    return f"{known[1]}, since {known[2]}" if known else "another process"
