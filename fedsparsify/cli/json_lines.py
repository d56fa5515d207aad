"""`--json`: one JSON object per round on stdout, and nothing else there.

In: a command that prints to stdout, as may libraries, child processes and a user's own code. Out: all of that on
stderr; on stdout the rounds alone.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any

from ..federation.ledger import Entry, line


class JsonLines:
    """Writes finished rounds, each as a line of `history.jsonl` with null for NaN and infinity."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write: Callable[[str], object] | None = write

    def show(self, entry: Entry, **more: object) -> None:
        """Write a round, after `more`. If the reader has gone, say so once; the run goes on."""
        if self._write is None:
            return
        try:
            self._write(json.dumps(_finite(more | json.loads(line(entry)))) + "\n")
        except BrokenPipeError:
            self._write = None
            print("Nobody reads the JSON lines any more; the work goes on.", file=sys.stderr)


@contextmanager
def json_lines(wanted: bool) -> Iterator[JsonLines | None]:
    """Within the block, stdout is for rounds: what else is printed goes to stderr. None where it is not wanted."""
    if not wanted:
        yield None
        return
    usual, replaced = sys.stdout, sys.stdout is not sys.__stdout__
    if replaced:  # replaced by a program that runs the command inside itself
        with redirect_stdout(sys.stderr):
            yield JsonLines(usual.write)
        return
    usual.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)  # child processes and compiled code have it, too
    try:
        yield JsonLines(partial(_write_all, descriptor))
    finally:
        usual.flush()
        os.dup2(descriptor, 1)
        os.close(descriptor)


def _write_all(descriptor: int, text: str) -> None:
    """Write past Python's buffers, which would keep what a reader that has gone did not take."""
    data = text.encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _finite(value: Any) -> Any:
    """The value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value
