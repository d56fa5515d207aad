"""Every error raised on purpose.

    FedSparsifyError
     ├── ConfigError       a setting is wrong, unknown or does not fit the others
     ├── DataError         a data set is absent, damaged or cannot be divided as asked
     ├── MethodError       a method of a user's own does what a method may not
     ├── ModelError        a model, network or graph does not fit; OutOfMemory (engine), Untraceable (tracing)
     ├── ClientError       too few clients returned a usable update
     ├── RunError          a run directory cannot be written, resumed or read
     └── WireError         bytes that are not a model

A message says what is wrong, where, what was received and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedSparsifyError(Exception):
    """Base of every error that this package raises on purpose."""

    logged = False  # whether a command's log has it already


class ConfigError(FedSparsifyError):
    """A setting is wrong, unknown or does not fit the others."""


class DataError(FedSparsifyError):
    """A data set is absent, damaged or cannot be divided as asked."""


class MethodError(FedSparsifyError):
    """A method of a user's own does what a method may not."""


class ModelError(FedSparsifyError):
    """Weights, masks or layouts that do not fit together."""


class ClientError(FedSparsifyError):
    """Too few clients returned a usable update."""


class RunError(FedSparsifyError):
    """A run directory cannot be written, resumed or read."""


class WireError(FedSparsifyError):
    """Bytes that are not a model."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'rounds'?`, or the whole choice where nothing is near."""
    known = sorted(known)
    if not known:
        return "It has none."
    close = get_close_matches(word, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Choose from: {', '.join(known)}."
