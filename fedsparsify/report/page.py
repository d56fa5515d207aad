"""One page that opens from disk: everything it needs is inside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..wire.files import atomic
from .environments import Environment


def write_page(environments: Sequence[Environment], notes: Sequence[str], path: Path) -> None:
    """Write the page of these runs."""
    with atomic(path) as file:
        file.write(b"")
