"""Files that are replaced as a whole: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

from ..errors import RunError

STALE_SECONDS = 3600.0  # a partial file this old was left by a writer that was killed


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that replaces `path` once all its bytes are on disk.

    Until then it has a name of its own, so that two writers of one path never write into the same file.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")
    for old in partials(path):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > STALE_SECONDS:
                old.unlink()
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def partials(path: Path) -> list[Path]:
    """The partial files of all writers of `path`, also of killed ones."""
    return list(path.parent.glob(f".{escape(path.name)}.*.partial"))


def _sync_folder(folder: Path) -> None:
    """Make the rename durable, if the platform can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
