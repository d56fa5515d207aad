"""Files that are either the old one or the new one, never half of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import RunError


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` only once everything in it is on disk."""
    partial = path.with_name(f".{path.name}.partial")  # one name, so that what a kill left is written over
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last, where the platform can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
