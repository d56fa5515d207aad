"""What a network computes, as plain data: enough to run it without the code that trained it.

A graph is a tuple of nodes in the order in which they run. The network's input is called "input"; the last node's
output is the network's. Tensors are named as in the model's layout.

| op | tensors | attributes |
|---|---|---|
| linear | weight (out, in), bias? | |
| conv2d | weight (out, in / groups, kh, kw), bias? | stride, padding, dilation: [h, w]; groups |
| batch_norm | weight?, bias?, running_mean, running_var | eps |
| relu, relu6, sigmoid, tanh, silu, hardswish, gelu | | |
| leaky_relu | | slope |
| max_pool2d | | kernel, stride, padding: [h, w]; ceil |
| avg_pool2d | | kernel, stride, padding: [h, w]; ceil, count_padding |
| adaptive_avg_pool2d | | size: [h, w] |
| flatten | | start (counted with the batch dimension) |
| add | | (two inputs) |
| softmax | | axis |
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
