"""Which GPU layers compute a network, and what each of them does about gradients.

In: a module and the shape of a sample. Out: a `GpuPlan`, or `NotPlanned` with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ...graph import INPUT
from ...keyed import KeyedDropout
from ...model import Layout
from ...networks import layout_of
from .. import graph_layers
from ..graph_layers import NotPlanned, read_network, squares_of, with_sums
from ..stacks.stack import Order
from .launch import Image, cover
from .layers import BatchNorm, Dropout, GpuLayer, GroupNorm, Sum
from .pools import MaxPool, MeanPool, WindowPool
from .product import Product

PAD = 16  # the least that a first convolution's channels are padded to: the smallest tile
LARGEST_GROUP = 1024  # channels of a group that a program normalises
LARGEST_WINDOW = 11  # a pool's: the place of the largest pixel is kept in a byte


@dataclass(frozen=True)
class GpuPlan:
    """The layers of a network, in the order in which they run."""

    layers: list[GpuLayer]
    orders: dict[str, Order]  # of the axes of tensors in a stack: channels last

    @property
    def first(self) -> Product:
        """The one layer that reads the samples."""
        assert isinstance(self.layers[0], Product)
        return self.layers[0]


def read_plan(module: nn.Module, shape: Sequence[int]) -> GpuPlan:
    """The plan of a network."""
    layout = layout_of(module)
    network = read_network(module, layout, shape)
    reader = _Reader(module, layout, network.shapes)
    for layer in with_sums(network.layers, network.output):
        reader.read(layer)
    layers = reader.layers
    if not layers or not isinstance(layers[0], Product):
        raise NotPlanned("its first layer is neither a convolution nor a linear layer")
    if sum((layer.source == INPUT) + (layer.added == INPUT) for layer in layers) > 1:
        raise NotPlanned("several layers read its input")
    last = layers[-1]
    if not (isinstance(last, Product) and last.dense) or last.relu:
        raise NotPlanned("its last layer is not a linear layer")
    _plan_gradients(layers)
    _plan_memory(layers)
    return GpuPlan(layers, reader.orders)


class _Reader:
    """Turns the layers of a network into GPU layers. A flattened image stays where it lies, under its own name."""

    def __init__(self, module: nn.Module, layout: Layout, shapes: dict[str, Image]) -> None:
        self._module, self._shapes = module, shapes
        self._shapes_of = {spec.name: spec.shape for spec in layout}  # of tensors, as torch has them
        self._names: dict[str, str] = {}  # of a flattened value → the image's
        self._images: dict[str, Image] = {INPUT: shapes[INPUT]}  # in which a value lies
        self.layers: list[GpuLayer] = []
        self.orders: dict[str, Order] = {}

    def read(self, layer: graph_layers.Layer) -> None:
        """Append the layer."""
        sources = [self._names.get(name, name) for name in layer.inputs]
        if isinstance(layer, graph_layers.Flatten):
            self._names[layer.output] = sources[0]
            return
        image = self._images[sources[0]]
        whole = self._shapes[layer.inputs[0]] == image
        if not whole and not self._reads_pixels_as_features(layer):
            raise NotPlanned(f"its kernels compute {layer.output!r} on images, not on flattened ones")
        if any(self._images[name] != image for name in sources[1:]):
            raise NotPlanned(f"{layer.output!r} adds an image and a flattened one")
        made = self._layer(layer, sources, image)
        self.layers.append(made)
        self._images[layer.output] = image if isinstance(made, Dropout | Sum) else self._shapes[layer.output]

    def _reads_pixels_as_features(self, layer: graph_layers.Layer) -> bool:
        if isinstance(layer, graph_layers.Convolution):
            return len(self._shapes_of[layer.weight]) == 2
        return isinstance(layer, graph_layers.Dropout | graph_layers.Add | graph_layers.Relu)

    def _layer(self, layer: graph_layers.Layer, sources: list[str], image: Image) -> GpuLayer:
        at = (sources[0], layer.output, image, image[0])
        added = sources[1] if len(sources) > 1 else ""
        match layer:
            case graph_layers.Convolution():
                return self._product(layer, sources[0], image)
            case graph_layers.Norm(weight=str(weight), bias=str(bias)):
                running = layer.running_mean, layer.running_var
                return BatchNorm(*at, weight, bias, *running, layer.eps, layer.momentum, added=added, relu=layer.relu)
            case graph_layers.GroupNorm(weight=str(weight), bias=str(bias)):
                if image[0] // layer.groups > LARGEST_GROUP:
                    raise NotPlanned(f"{layer.output!r} normalises groups of more than {LARGEST_GROUP:,} channels")
                return GroupNorm(*at, weight, bias, layer.groups, layer.eps, added=added, relu=layer.relu)
            case graph_layers.Norm() | graph_layers.GroupNorm():
                raise NotPlanned(f"{layer.output!r} is a norm without scale and shift")
            case graph_layers.Pool():
                return self._pool(layer, at, image)
            case graph_layers.Add():
                return Sum(*at, added=added, relu=layer.relu)
            case graph_layers.Relu():
                return Sum(*at, relu=True)
            case graph_layers.Dropout():
                child = self._module.get_submodule(layer.module)
                if not isinstance(child, KeyedDropout) or child.p >= 1:
                    raise NotPlanned(f"{layer.output!r} drops everything")
                return Dropout(*at, child.p, child.salt)
        raise NotPlanned(f"its kernels have no {type(layer).__name__}")

    def _product(self, layer: graph_layers.Convolution, source: str, image: Image) -> Product:
        (outputs, inputs, side, wide), name = layer.kernel, layer.weight
        if len(self._shapes_of[name]) == 2:
            if image[1:] != (1, 1):
                self.orders[name] = ((outputs, *image), (0, 2, 3, 1))
            at = (source, layer.output, image, outputs)
            return Product(*at, name, layer.bias, True, 1, 1, inputs, inputs, relu=layer.relu)
        square = side == wide and layer.stride[0] == layer.stride[1] and layer.padding[0] == layer.padding[1]
        if not square or layer.groups > 1 or layer.dilation != (1, 1) or layer.padding[0] >= side:
            raise NotPlanned(
                f"{layer.output!r} is a convolution in groups, with dilation or without a square window: "
                f"its kernel is {side} × {wide}, stride {layer.stride}, padding {layer.padding}, "
                f"dilation {layer.dilation}, {layer.groups} group(s)"
            )
        self.orders[name] = (layer.kernel, (0, 2, 3, 1))
        padded = cover(inputs, PAD, 1 << 30) if source == INPUT else inputs
        at, window = (source, layer.output, image, outputs), (side, layer.stride[0], layer.padding[0])
        return Product(*at, name, layer.bias, False, *image[1:], inputs, padded, *window, relu=layer.relu)

    def _pool(self, layer: graph_layers.Pool, at: tuple[str, str, Image, int], image: Image) -> GpuLayer:
        _, rows, columns = image
        if layer.mean:
            whole = ((0, rows),), ((0, columns),), (1 / (rows * columns),)
            if (layer.rows, layer.columns, layer.factors) != whole:
                raise NotPlanned(f"{layer.output!r} is a mean of parts of an image")
            return MeanPool(*at)
        (side, wide), (stride, across), (padding, beside) = layer.kernel, layer.stride, layer.padding
        if rows % 2 == columns % 2 == 0 and squares_of(layer, image):
            return MaxPool(*at)
        if (side, stride, padding) != (wide, across, beside) or side > LARGEST_WINDOW:
            raise NotPlanned(f"{layer.output!r} is a pool without a square window of at most {LARGEST_WINDOW} pixels")
        if layer.rows[-1][1] < rows or layer.columns[-1][1] < columns:
            raise NotPlanned(f"{layer.output!r} is a pool that leaves out the image's last pixels")
        return WindowPool(*at, (len(layer.rows), len(layer.columns)), side, stride, padding)


def _plan_gradients(layers: Sequence[GpuLayer]) -> None:
    """Who adds up the gradients of a value, and who zeroes their sum where the value's ReLU was inactive.

    The last layer to give a gradient does so in its kernel, unless it passes on what it is given; a product also adds.
    """
    readers: dict[str, list[GpuLayer | None]] = {}  # in the order of their gradients; None: one that passes it on
    for layer in reversed(layers):
        if layer.added:
            readers.setdefault(layer.added, []).append(None)
        readers.setdefault(layer.source, []).append(None if isinstance(layer, Sum) else layer)
    for maker in layers[:-1]:
        *others, last = readers[maker.output]
        if last is None or (others and not isinstance(last, Product)):
            maker.unmasked = maker.relu
            continue
        last.mask, last.more = maker.relu, bool(others)
        if isinstance(maker, Product) and not maker.dense and maker.bias and not others:
            # The column sums of the gradient, by the kernel that computes it. Its channels are the maker's outputs.
            convolution = isinstance(last, Product) and not last.dense and last.stride == 1
            if convolution or isinstance(last, BatchNorm | MaxPool):
                last.below, maker.bias_above = maker.bias, True


def _plan_memory(layers: Sequence[GpuLayer]) -> None:
    """After which layer a value is no longer read."""
    seen: set[str] = set()
    for layer in reversed(layers):
        read = {layer.source, layer.added} - {""} - seen
        seen |= read
        layer.frees = tuple(sorted(read))
