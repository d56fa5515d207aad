"""What a user must know though the work goes on: one line each, through Python's `warnings`.

In Python they can be caught and filtered like any warning; the command line prints each once.
"""

from __future__ import annotations

import warnings


class Notice(UserWarning):
    """Something falls back, or will not be there at the end."""


def notice(message: str) -> None:
    """Say it once."""
    warnings.warn(message, Notice, stacklevel=3)
