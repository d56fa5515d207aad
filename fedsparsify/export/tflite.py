"""As a TFLite file of one batch size, which XNNPACK runs. Needs `litert-torch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from ..graph import Node
from ..ops import by_torch


class Network(nn.Module):
    """A graph as a module that torch.export can read; its tensors are buffers, zeros included."""

    def __init__(self, graph: Sequence[Node], tensors: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.graph = graph
        self.held = {name: f"tensor_{place}" for place, name in enumerate(tensors)}
        for name, buffer in self.held.items():
            self.register_buffer(buffer, torch.from_numpy(np.array(tensors[name])))

    def forward(self, x: torch.Tensor) -> Any:
        """The network's output for a batch."""
        tensors = {name: getattr(self, buffer) for name, buffer in self.held.items()}
        return by_torch(functional, self.graph, tensors, x)


def write_tflite(
    path: Path, graph: Sequence[Node], tensors: Mapping[str, np.ndarray], shape: Sequence[int], batch: int
) -> None:
    """Write a network for batches of one size. Samples have PyTorch's layout; a transpose is the file's first step."""
    import litert_torch

    sample = torch.zeros(batch, *shape)
    litert_torch.convert(Network(graph, tensors).eval(), (sample,)).export(str(path))
