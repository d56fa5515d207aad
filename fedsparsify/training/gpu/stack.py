"""Stacks of convolutional and dense networks on a GPU, by our own kernels and without autograd.

In: the plan of a network, and a stack of models. Out: the gradients of one step of all models, or the step itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace

import torch

from ...graph import INPUT
from ...keyed import uniform
from ...methods import Request
from ..batches import Batches, StepInputs
from ..stacks.stack import Stack
from . import pointwise_kernels, product_kernels
from .launch import StepTensors, cdiv, cover
from .layers import Dropout, summed
from .plan import GpuPlan
from .product import Product

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
COMPILERS = 8  # kernels compiled at a time


class GpuStack:
    """A stack of networks of the layers in `GpuLayer`, which read each other's values in any order."""

    def __init__(
        self,
        plan: GpuPlan,
        stack: Stack,
        batches: Batches,
        precision: str,
        batch: int,
        label_smoothing: float = 0.0,
    ) -> None:
        self._smoothing = label_smoothing
        self._layers = [copy(layer) for layer in plan.layers]  # they keep what a step's gradient needs
        self._stack, self._labels, self._batch = stack, batches.samples.y, batch
        self._batches = batches
        self._images = batches.samples.x.flatten(1) if plan.first.dense else batches.channels_last()
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
        self._values: torch.Tensor | None = None  # the network's, where the stack's weights are their roots
        self._prunes, self._shares, self._thresholds = False, dict[str, torch.Tensor](), dict[str, torch.Tensor]()

    def begin(self, requests: Sequence[Request]) -> torch.Tensor:
        """Bring the copy in the compute type up to date; under powers it is one in float32, too."""
        weights = self._stack.weights
        if self._type == torch.float32:
            apart = requests[0].power != 1
            if apart and self._values is None:
                self._values = torch.empty_like(weights)
            self.shadow = self._values if apart and self._values is not None else weights
        if self.shadow is not weights:
            self.shadow.copy_(weights)
        self._prunes = requests[0].prune_inputs
        for layer in self._layers if self._prunes else ():
            if isinstance(layer, Product):
                block = self._stack.tensors[layer.weight].flatten(1)
                empty = torch.empty(len(block), dtype=torch.float64, device=weights.device)
                share = self._shares.setdefault(layer.weight, empty)  # a captured graph reads it where it is
                share.copy_(block.count_nonzero(1).double() / block.shape[1])
                self._thresholds.setdefault(layer.weight, torch.zeros(len(block), device=weights.device))
        return self.shadow

    @property
    def plain(self) -> bool:
        """Whether plain SGD can be applied as the gradients are computed: in networks of dense layers alone."""
        return all(isinstance(layer, Dropout) or (isinstance(layer, Product) and layer.dense) for layer in self._layers)

    def compile(self, sizes: Iterable[int], gradient: torch.Tensor | None, fixed_norms: bool) -> None:
        """Compile the kernels for batches of these sizes, several at a time: run each layer once, at a rate of 0."""
        stack = self._stack
        rates = torch.zeros(stack.models, device=stack.device)
        tensors = self._tensors(slice(0, stack.models), gradient, rates, 0.0, fixed_norms=fixed_norms)
        tensors = replace(tensors, side=None)
        tensors = replace(tensors, statistics={name: block.clone() for name, block in tensors.statistics.items()})

        keys = torch.zeros(stack.models, dtype=torch.int64, device=stack.device)

        def compile_layer(place: int, size: int) -> None:
            layer, first = copy(self._layers[place]), place == 0
            rows = keys[:, None].expand(-1, size).contiguous()
            x = torch.zeros(stack.models, size * layer.pixels, layer.channels, dtype=self._type, device=stack.device)
            if isinstance(layer, Product) and first:
                x = self._gather(layer, rows, keys)
            if isinstance(layer, Dropout):
                layer.keys = keys
            if isinstance(layer, Product) and place == len(self._layers) - 1:
                layer.train_as_last(
                    x, tensors, not first, self._labels, rows, torch.zeros(stack.models, device=stack.device)
                )
            else:
                y = layer.forward(x, tensors, x if layer.added else None)
                layer.backward(torch.zeros_like(y), tensors, not first, x if layer.more else None)

        with ThreadPoolExecutor(COMPILERS) as pool:
            jobs = [pool.submit(compile_layer, place, size) for size in sizes for place in range(len(self._layers))]
            for job in jobs:
                job.result()

    def _tensors(
        self,
        span: slice,
        gradient: torch.Tensor | None,
        rates: torch.Tensor,
        decay: float,
        first: bool = True,
        fixed_norms: bool = False,
    ) -> StepTensors:
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
            {name: share[span] for name, share in self._shares.items()} if self._prunes else None,
            {name: least[span] for name, least in self._thresholds.items()},
            first,
            fixed_norms,
            self._side,
        )

    def step(self, inputs: StepInputs) -> None:
        """Gradients of every model into the buffer, or applied at once."""
        rows, models = inputs.rows, len(inputs.rows)
        tensors = self._tensors(
            inputs.span, inputs.gradient, inputs.rates, inputs.decay, inputs.first, inputs.fixed_norms
        )
        *layers, last = self._layers
        first = self._layers[0]
        assert isinstance(first, Product) and isinstance(last, Product)
        values = {INPUT: self._gather(first, rows, inputs.keys)}
        opened: dict[str, torch.Tensor] = {}  # outputs of ReLUs whose gradient no reader masks
        for layer in layers:
            if isinstance(layer, Dropout):
                layer.keys = inputs.keys
            added = values[layer.added] if layer.added else None
            y = values[layer.output] = layer.forward(values[layer.source], tensors, added)
            if layer.unmasked:
                opened[layer.output] = y
            for name in layer.frees:
                del values[name]
        d = last.train_as_last(
            values.pop(last.source), tensors, bool(layers), self._labels, rows, inputs.losses[inputs.span]
        )
        # Of each value: by the layers that read it, the last of them first.
        gradients: dict[str, list[torch.Tensor]] = {last.source: [] if d is None else [d]}
        for layer in reversed(layers):
            parts = [part.view(models, -1, layer.outputs) for part in gradients.pop(layer.output)]
            d = joined(parts, opened.get(layer.output))
            if layer.added:
                gradients.setdefault(layer.added, []).append(d)
            more = joined(gradients.pop(layer.source)) if layer.more else None
            dx = layer.backward(d, tensors, layer.source != INPUT, more)
            if dx is not None:
                gradients.setdefault(layer.source, []).append(dx)
        tensors.join()

    def _gather(self, first: Product, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The samples as the first layer reads them; shifted and mirrored as `pad_crop_flip` would.

        A dense layer reads them where they are.
        """
        if first.dense and self._batches.augment:
            return self._batches(rows, keys)[0].flatten(2).to(self._type)
        if first.dense:
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


def joined(parts: Sequence[torch.Tensor], opened: torch.Tensor | None = None) -> torch.Tensor:
    """The sum of a value's gradients; zero where `opened`, the value itself, is, if it came out of a ReLU."""
    total, *rest = parts
    for number, part in enumerate(rest, 1):
        total = summed(total, part, opened=opened if number == len(rest) else None)
    return total if rest or opened is None else summed(total, opened=opened)
