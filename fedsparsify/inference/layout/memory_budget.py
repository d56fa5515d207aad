"""The memory budget of an engine: counted in exact integers, before anything is allocated.

Input: the bytes that a stage is about to take. Output: nothing, or an `OutOfMemory` that names what needs them.
"""

from __future__ import annotations

from threading import RLock
from weakref import finalize

from ...errors import ModelError
from ...model import Floats
from ...native.lines import LINE_BYTES, zeros
from ...native.machine import memory_here

UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


class OutOfMemory(ModelError):
    """An engine would need more memory than it may take."""


class MemoryBudget:
    """What an engine may take and has taken, in bytes; what is freed may be taken again."""

    def __init__(self, limit: int | None = None) -> None:
        """At most `limit` bytes; half of the machine's memory where it is None."""
        if limit is None:
            limit = memory_here() // 2
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ModelError(f"max_memory is a number of bytes, at least 1. Received: {limit!r}.")
        self.limit, self.taken = limit, 0
        self._lock = RLock()  # arrays may be freed, and so given back, while some are taken

    def expect(self, amount: int, what: str) -> None:
        """Raise `OutOfMemory` if `amount` bytes are more than is left of the budget."""
        if amount > self.limit - self.taken:
            beside = f", {size_of(self.taken)} of which are taken" if self.taken else ""
            raise OutOfMemory(
                f"{what} needs {size_of(amount)} of memory. An engine may take {size_of(self.limit)}{beside}; "
                "max_memory (--max-memory) sets another limit."
            )

    def take(self, amount: int, what: str, owner: object = None) -> None:
        """Take memory until its owner is freed, or for ever."""
        with self._lock:
            self.expect(amount, what)
            self.taken += amount
        if owner is not None:
            finalize(owner, self.give, amount).atexit = False

    def zeros(self, count: int, what: str) -> Floats:
        """`count` zeros, aligned to a cache line."""
        amount = 4 * count + LINE_BYTES
        self.take(amount, what)
        try:
            made: Floats = zeros(count)
        except (MemoryError, ValueError):
            self.give(amount)
            raise OutOfMemory(f"{what} needs {size_of(amount)} of memory, which the system does not have.") from None
        finalize(made, self.give, amount).atexit = False
        return made

    def give(self, amount: int) -> None:
        """Give memory back that was taken."""
        with self._lock:
            self.taken -= amount


def size_of(amount: int) -> str:
    """A number of bytes, readable."""
    power = min((len(str(amount)) - 1) // 3, len(UNITS) - 1) if amount > 0 else 0
    return f"{amount} {UNITS[0]}" if power == 0 else f"{amount / 1000**power:,.1f} {UNITS[power]}"
