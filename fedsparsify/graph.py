"""What a network computes, as plain data: enough to run it without the code that trained it.

A graph is a tuple of nodes in the order in which they run. The network's input is called "input"; the last node's
output is the network's. Tensors are named as in the model's layout.

The operations, with their tensors and attributes, are the files of `ops/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INPUT = "input"


@dataclass(frozen=True)
class Node:
    """One operation: what it reads, which tensors it holds, and the name of what it gives."""

    op: str
    output: str
    inputs: tuple[str, ...]
    tensors: Mapping[str, str] = field(default_factory=dict)  # role → name in the layout
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "op": self.op,
            "output": self.output,
            "inputs": list(self.inputs),
            "tensors": dict(self.tensors),
            "attributes": dict(self.attributes),
        }
