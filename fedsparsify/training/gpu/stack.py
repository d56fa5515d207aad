"""Stacks of convolutional and dense networks on a GPU, by our own kernels and without autograd.

In: a sequential module, and a stack of models. Out: the gradients of one step of all models, or the step itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

import torch
from torch import nn

from ...keyed import KeyedDropout, uniform
from ..batches import Batches, StepInputs
from ..sequence import in_sequence
from ..stacks.stack import Order, Stack
from . import pointwise_kernels, product_kernels
from .launch import StepTensors, cdiv, cover
from .layers import BatchNorm, Dropout, GpuLayer, MaxPool
from .product import Product

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
COMPILERS = 8  # kernels compiled at a time
PAD = 16  # the least that a first convolution's channels are padded to: the smallest tile


def read_layers(module: nn.Module, shape: Sequence[int]) -> list[GpuLayer] | None:
    """The layers of a sequential network; None where our kernels do not have one of them."""
    layers: list[GpuLayer] = []
    image = list(shape) if len(shape) == 3 else None
    flat, pixels = len(shape) == 1, 1  # whether a sample is a vector; pixels of the image that it still lies in
    for name, child in in_sequence(module):
        before = layers[-1] if layers else None
        masked = before is not None and before.relu
        if type(child) is nn.Flatten and (child.start_dim, child.end_dim) == (1, -1):
            image, flat = None, True
        elif type(child) is nn.Linear and flat:
            layers.append(
                Product(name, 1, 1, child.in_features, child.in_features, child.out_features, 1, child.bias is not None)
            )
            layers[-1].mask, pixels = masked, 1
        elif _is_convolution(child) and image is not None:
            channels = cover(image[0], PAD, 1 << 30) if before is None else image[0]
            layers.append(
                Product(name, image[1], image[2], image[0], channels, child.out_channels, 9, child.bias is not None)
            )
            layers[-1].mask, pixels = masked, image[1] * image[2]
            image[0] = child.out_channels
        elif type(child) is nn.BatchNorm2d and child.affine and child.momentum and child.track_running_stats and before:
            layers.append(BatchNorm(name, child.num_features, child.eps, child.momentum, mask=masked))
        elif type(child) is nn.ReLU and isinstance(before, Product | BatchNorm) and not before.relu:
            before.relu = True
        elif _is_pool(child) and before is not None and image and image[1] % 2 == image[2] % 2 == 0:
            layers.append(MaxPool(image[1], image[2], image[0], mask=masked))
            image[1:] = [image[1] // 2, image[2] // 2]
            pixels //= 4
        elif type(child) is KeyedDropout and child.p < 1 and before is not None:
            layers.append(Dropout(child.p, child.salt, pixels, mask=masked))
        else:
            return None
    for below, layer in pairwise(layers):
        if not (isinstance(below, Product) and below.taps > 1 and below.bias) or isinstance(layer, Dropout):
            continue
        if not isinstance(layer, Product) or layer.taps > 1:  # its channels are the outputs of the convolution below
            layer.below, below.bias_above = f"{below.name}.bias", True
    ends_in_dense = bool(layers) and isinstance(layers[-1], Product) and layers[-1].taps == 1 and not layers[-1].relu
    return layers if ends_in_dense else None


def _is_convolution(child: nn.Module) -> TypeGuard[nn.Conv2d]:
    return type(child) is nn.Conv2d and (
        (child.kernel_size, child.stride, child.padding, child.dilation, child.groups)
        == ((3, 3), (1, 1), (1, 1), (1, 1), 1)
        and child.padding_mode == "zeros"
    )


def _is_pool(child: nn.Module) -> bool:
    return type(child) is nn.MaxPool2d and (
        (child.kernel_size, child.stride, child.padding, child.dilation, child.return_indices) == (2, 2, 0, 1, False)
    )


def orders(module: nn.Module, shape: Sequence[int]) -> dict[str, Order]:
    """The order of a tensor's axes in a stack: name → (shape to view it in, permutation), channels last."""
    found: dict[str, Order] = {}
    image, flattened = list(shape) if len(shape) == 3 else None, False
    for name, child in in_sequence(module):
        if isinstance(child, nn.Conv2d) and image:
            found[f"{name}.weight"] = (tuple(child.weight.shape), (0, 2, 3, 1))
            image[0] = child.out_channels
        elif isinstance(child, nn.MaxPool2d) and image:
            image[1:] = [image[1] // 2, image[2] // 2]
        elif isinstance(child, nn.Linear):
            if image and flattened and len(found):
                found[f"{name}.weight"] = ((child.out_features, *image), (0, 2, 3, 1))
            image = None
        elif isinstance(child, nn.Flatten):
            flattened = True
    return found


class GpuStack:
    """A stack of sequential networks of Conv2d 3×3, Linear, BatchNorm2d, ReLU, MaxPool2d 2 and Dropout."""

    def __init__(
        self,
        layers: list[GpuLayer],
        stack: Stack,
        batches: Batches,
        precision: str,
        batch: int,
        label_smoothing: float = 0.0,
    ) -> None:
        self._smoothing = label_smoothing
        self._layers, self._stack, self._labels, self._batch = layers, stack, batches.samples.y, batch
        self._batches = batches
        dense = isinstance(layers[0], Product) and layers[0].taps == 1
        self._images = batches.samples.x.flatten(1) if dense else batches.channels_last()
        self._type = TYPES[precision]
        self._precision = "tf32" if precision == "tf32" else "tf32x3"  # three products, the accuracy of float32
        on_gpu = stack.device.type == "cuda"
        self._side = torch.cuda.Stream(stack.device) if on_gpu and self.plain else None  # type: ignore[no-untyped-call]
        # Networks of short kernels gain: a sixth of fc's step. Long kernels lose 1 %.
        self._early = (
            on_gpu and self.plain and product_kernels.can_begin_early(torch.cuda.get_device_capability(stack.device))
        )
        self.shadow = (
            stack.weights if self._type == torch.float32 else torch.empty_like(stack.weights, dtype=self._type)
        )

    def refresh(self) -> None:
        """Bring the copy in the compute type up to date."""
        if self.shadow is not self._stack.weights:
            self.shadow.copy_(self._stack.weights)

    @property
    def plain(self) -> bool:
        """Whether plain SGD can be applied as the gradients are computed: in networks of dense layers alone."""
        return all(
            isinstance(layer, Dropout) or (isinstance(layer, Product) and layer.taps == 1) for layer in self._layers
        )

    def compile(self, sizes: Iterable[int], gradient: torch.Tensor | None) -> None:
        """Compile the kernels for batches of these sizes, several at a time: run each layer once, at a rate of 0."""
        stack = self._stack
        rates = torch.zeros(stack.models, device=stack.device)
        tensors = replace(self._tensors(slice(0, stack.models), gradient, rates, 0.0), side=None)
        tensors = replace(tensors, statistics={name: block.clone() for name, block in tensors.statistics.items()})

        keys = torch.zeros(stack.models, dtype=torch.int64, device=stack.device)

        def compile_layer(place: int, pixels: int, size: int) -> None:
            layer, first = copy(self._layers[place]), place == 0
            rows = keys[:, None].expand(-1, size).contiguous()
            width = layer.padded if isinstance(layer, Product) else getattr(layer, "channels", 16)
            if first:
                x = self._gather(layer, rows, keys)
            else:
                x = torch.zeros(stack.models, size * pixels, width, dtype=self._type, device=stack.device)
            if isinstance(layer, Dropout):
                layer.keys = keys
            if isinstance(layer, Product) and place == len(self._layers) - 1:
                layer.train_as_last(
                    x, tensors, not first, self._labels, rows, torch.zeros(stack.models, device=stack.device)
                )
            else:
                layer.backward(torch.zeros_like(layer.forward(x, tensors)), tensors, not first)

        with ThreadPoolExecutor(COMPILERS) as pool:
            jobs = [pool.submit(compile_layer, *at, size) for size in sizes for at in enumerate(self._pixels())]
            for job in jobs:
                job.result()

    def _pixels(self) -> list[int]:
        """Every layer's pixels of an image as it comes in."""
        pixels, found = 1, []
        for layer in self._layers:
            if isinstance(layer, Product | MaxPool):
                pixels = layer.height * layer.width
            found.append(pixels)
            if isinstance(layer, MaxPool):
                pixels //= 4
        return found

    def _tensors(self, span: slice, gradient: torch.Tensor | None, rates: torch.Tensor, decay: float) -> StepTensors:
        stack = self._stack

        def blocks(flat: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: block[span] for name, block in stack.blocks(flat).items()}

        return StepTensors(
            blocks(stack.weights),
            blocks(self.shadow),
            {name: block[span] for name, block in stack.buffers.items()},
            blocks(stack.pruned),
            None if gradient is None else blocks(gradient),
            self._precision,
            self._batch,
            rates,
            decay,
            self._smoothing,
            self._early,
            self._side,
        )

    def step(self, inputs: StepInputs) -> None:
        """Gradients of every model into the buffer, or applied at once."""
        rows, models = inputs.rows, len(inputs.rows)
        tensors = self._tensors(inputs.span, inputs.gradient, inputs.rates, inputs.decay)
        *layers, last = self._layers
        h = self._gather(self._layers[0], rows, inputs.keys)
        for layer in layers:
            if isinstance(layer, Dropout):
                layer.keys = inputs.keys
            h = layer.forward(h, tensors)
        assert isinstance(last, Product)
        d = last.train_as_last(h, tensors, bool(layers), self._labels, rows, inputs.losses[inputs.span])
        for position, layer in reversed(list(enumerate(layers))):
            assert d is not None
            width = layer.outputs if isinstance(layer, Product) else getattr(layer, "channels", d.shape[2])
            d = layer.backward(d.view(models, -1, width), tensors, position > 0)
        tensors.join()

    def _gather(self, first: GpuLayer, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The samples as the first layer reads them; shifted and mirrored as `pad_crop_flip` would.

        A dense layer reads them where they are.
        """
        assert isinstance(first, Product)
        if first.taps == 1 and self._batches.augment:
            return self._batches(rows, keys)[0].flatten(2).to(self._type)
        if first.taps == 1:
            first.table = rows
            return self._images
        models, batch = rows.shape
        height, width, channels, padded = first.height, first.width, first.inputs, first.padded
        x = torch.empty(models, batch * height * width, padded, dtype=self._type, device=rows.device)
        top = left = flip = rows
        if self._batches.augment:
            draw = uniform(keys, 3 * batch, salt=-2).view(models, batch, 3)
            top, left = ((draw[..., :2] * 9).int() - 4).unbind(2)
            top, left, flip = top.contiguous(), left.contiguous(), (draw[..., 2] >= 0.5).int().contiguous()
        block = cover(height * width, 16, max(16, 1024 // padded))
        pointwise_kernels._gather[cdiv(height * width, block), models * batch](
            *(self._images, rows, rows.stride(0), batch, top, left, flip, x, height * width),
            *(height, width, channels, padded, self._batches.augment, block),
        )
        return x
