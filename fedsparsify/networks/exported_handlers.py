"""The table of calls of ATen that a graph says in other words.

Each handler is given the reader, what the call gives (a tensor without data, for its shape), and the call's arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])
HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a function for operations of ATen."""

    def register(function: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register
