"""Values of a network while it is traced: which of them share memory, and which were overwritten.

In: reads, writes in place and views, in their order. Out: the graph's name of what a value holds; or `Untraceable`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ops.base import Untraceable


@dataclass
class Storage:
    """Memory that several values may share. Each write in place gives it a new version."""

    version: int = 0


@dataclass
class Value:
    """A tensor in the traced network: the name in the graph of what it holds now, and the memory that it lies in.

    An operation in place changes the name, for every alias of the value. A view of the same memory is another value;
    its version tells that it was overwritten, and there is no name for what it holds then.
    """

    name: str
    storage: Storage = field(default_factory=Storage)
    version: int = 0

    def read(self) -> str:
        """The name of what it holds; `Untraceable` where a write through another view changed it."""
        if self.version != self.storage.version:
            raise Untraceable("it reads a view of a value that was changed in place")
        return self.name

    def write(self, name: str) -> None:
        """Have it hold another value, written in place."""
        self.storage.version += 1
        self.name, self.version = name, self.storage.version

    def view(self, name: str) -> Value:
        """Another value in the same memory."""
        return Value(name, self.storage, self.version)
