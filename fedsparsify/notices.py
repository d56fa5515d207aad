"""What a user must know though the work goes on: one line each, as Python warnings.

In Python they can be caught and filtered like any warning. They are shown as `Note: …`, without a file and a line.
"""

from __future__ import annotations

import warnings

from .text import plain

LONGEST = 3000  # letters


class Notice(UserWarning):
    """The work goes on, but slower, or without something that was asked for."""


def notice(message: str) -> None:
    """Warn the user."""
    warnings.warn(message, Notice, stacklevel=3)


_usual = warnings.formatwarning


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A notice as one line; any other warning as before."""
    if issubclass(category, Notice):
        return f"Note: {plain(message, LONGEST)}\n"
    return _usual(message, category, filename, lineno, line)


warnings.formatwarning = _formatted
