"""How often a run has released a noised sum. A resumed run that replays a round has released it twice.

In: one call before each release. Out: their number, which a kill cannot take back: `privacy.jsonl` is only ever added
to, unlike the history, which a resumed run cuts back to its checkpoint.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..errors import RunError


class Releases:
    """The releases of a run, in memory and, where a path is given, on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.count = 0
        if path is None or not path.exists():
            return
        try:  # every line counts, one that was cut off while it was written as well
            self.count = len(path.read_bytes().splitlines())
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error

    def check(self, rounds: int) -> None:
        """Refuse a count that is lower than the rounds that were played."""
        if self.count < rounds:
            raise RunError(
                f"{self._path} has {self.count:,} releases of noised sums, and the run has played {rounds:,} rounds. "
                f"What was spent is unknown: put the file back, or start anew in another folder."
            )

    def add(self, round: int, noise: float, rate: float) -> None:
        """Count a release before anybody sees it."""
        self.count += 1
        if self._path is None:
            return
        try:
            with self._path.open("a+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                cut = b"" if file.read(1) in (b"", b"\n") else b"\n"
                file.write(cut + json.dumps({"round": round, "noise": noise, "rate": rate}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self._path} cannot be written: {error.strerror or error}.") from error
