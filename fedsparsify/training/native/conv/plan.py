"""What the kernels compute of a network in training, as layers in order.

In: a module and the shape of a sample. Out: a `Plan`, or `NotPlanned` with the reason. A pool of 2 × 2 becomes a part
of the layer before it after the ReLU of a batch norm or of a convolution that keeps the image's size, where nothing
else reads what lies between. ReLUs and sums are parts of layers before them, too (`graph_layers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from ....model import Layout
from ...graph_layers import (
    Convolution,
    GroupNorm,
    Layer,
    Norm,
    NotPlanned,
    Pool,
    Shape,
    read_network,
    readers_of,
    squares_of,
    with_sums,
)
from .rows import POOLED_SIZES


@dataclass(frozen=True)
class Plan:
    """The layers of a network, in the order in which they run."""

    layers: tuple[Layer, ...]
    shapes: dict[str, Shape]  # of every value
    output: str

    @property
    def with_gradient(self) -> set[str]:
        """The values whose gradient is needed."""
        found: set[str] = set()
        for layer in self.layers:
            if isinstance(layer, Convolution | Norm) or found & set(layer.inputs):
                found.add(layer.output)
        return found

    @property
    def convolutions(self) -> list[Convolution]:
        """Convolutions and linear layers."""
        return [layer for layer in self.layers if isinstance(layer, Convolution)]


def read_plan(module: nn.Module, layout: Layout, sample: Sequence[int]) -> Plan:
    """The plan of a network."""
    network = read_network(module, layout, sample)
    for layer in network.layers:
        if isinstance(layer, GroupNorm):
            raise NotPlanned(f"it has no kernel for group_norm at {layer.output!r}")
    if not any(isinstance(layer, Convolution) and max(layer.kernel[2:]) > 1 for layer in network.layers):
        raise NotPlanned("it has no convolution")
    layers = _with_pools(network.layers, network.shapes, network.output)
    return Plan(tuple(with_sums(layers, network.output)), network.shapes, network.output)


def _with_pools(layers: Sequence[Layer], shapes: dict[str, Shape], output: str) -> list[Layer]:
    """Pools of 2 × 2 as parts of the layers before them."""
    readers, found = readers_of(layers, output), list[Layer]()
    makers: dict[str, int] = {}  # value → its layer in `found`
    for layer in layers:
        source = layer.inputs[0]
        k = makers.get(source) if readers[source] == 1 else None
        before = found[k] if k is not None else None
        if isinstance(layer, Pool) and isinstance(before, Convolution | Norm) and before.relu and not before.pooled:
            even = not (shapes[source][1] % 2 or shapes[source][2] % 2)
            squares = not layer.mean and squares_of(layer, shapes[source])
            fits = _keeps_size(before) if isinstance(before, Convolution) else readers[before.inputs[0]] == 1
            if even and squares and fits and k is not None:
                found[k] = replace(before, output=layer.output, pooled=True)
                makers[layer.output] = k
                continue
        found.append(layer)
        makers[layer.output] = len(found) - 1
    return found


def _keeps_size(layer: Convolution) -> bool:
    """Whether a square window, moved by one pixel, gives an image as large as the input."""
    size = layer.kernel[2]
    centred = layer.kernel[2:] == (size, size) and layer.padding == ((size - 1) // 2,) * 2
    return centred and size in POOLED_SIZES and layer.stride == layer.dilation == (1, 1)
