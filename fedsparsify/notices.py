"""What a user must know though the work goes on: one line each, as Python warnings.

In Python they can be caught and filtered like any warning; the command line prints each of them once.
"""

from __future__ import annotations

import warnings


class Notice(UserWarning):
    """The work goes on, but slower, or without something that was asked for."""


def notice(message: str) -> None:
    """Warn the user."""
    warnings.warn(message, Notice, stacklevel=3)
