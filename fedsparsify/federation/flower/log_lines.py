"""The lines that Flower's processes write, with their levels.

In: bytes of a pipe or of a log that grows. Out: (level, text) per line, without colours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:\s*(.*)", re.DOTALL)
# Lines of the ServerApp that are shown, though they are no warnings.
JOINING = re.compile(r"\d+ of \d+ clients joined|waiting for clients: .*")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


def with_levels(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Each line that says something; one without a level has that of the line before, as in a traceback."""
    level = "INFO"
    for line in lines:
        text = COLOUR.sub("", line.decode("utf-8", "replace")).rstrip()
        if found := LEVEL.fullmatch(text):
            level, text = found[1], found[2].rstrip()
        if text:
            yield level, text


def passed_on(lines: Iterable[bytes], write: Callable[[str, str], None] | None) -> None:
    """Write each line of a pipe as it comes, until the pipe ends."""
    for level, text in with_levels(lines):
        if write:
            write(level, text)


class Tail:
    """The warnings and errors that a growing log got since the last look, and who joined or is waited for."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return
        self._read += len(whole) + 1 if whole else 0
        for level, text in with_levels(whole.split(b"\n")):
            if level not in ("DEBUG", "INFO") or JOINING.fullmatch(text):
                yield level, text
