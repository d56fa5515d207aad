"""Layers of a stack on a GPU: each knows its shapes and launches its kernels, forwards and backwards.

A layer's input is (models, rows, channels). A ReLU is part of the layer before it; its mask is applied by whoever
computes the gradient of its output, so that it costs no pass of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...keyed import salted
from . import kernels
from . import pointwise as passes

Blocks = dict[str, torch.Tensor]
PROGRAMS = 528  # enough to fill a large GPU: four for each of its multiprocessors


def cdiv(a: int, b: int) -> int:
    """Division rounded up."""
    return -(-a // b)


def cover(n: int, least: int, most: int) -> int:
    """The power of two that covers n, within bounds."""
    return max(least, min(most, 1 << (n - 1).bit_length()))


@dataclass(frozen=True)
class Values:
    """The blocks of the models that take part in a step."""

    weights: Blocks  # float32
    compute: Blocks  # the same in the compute type
    statistics: Blocks
    pruned: Blocks
    gradients: Blocks | None  # None: plain SGD, applied as the gradients are computed
    precision: str  # of float32 products: "tf32", or "tf32x3" for the accuracy of float32
    batch: int  # the usual one: a smaller one at an epoch's end takes the same kernels, so that none is compiled for it
    lr: float
    early: bool = False  # a kernel may be set up while the one before still runs (programmatic dependent launch)
    side: torch.cuda.Stream | None = None  # small gradients are computed beside the main line
    held: list[torch.Tensor] = field(default_factory=list)  # what the side line still reads

    def launch(self, warps: int, stages: int) -> dict[str, Any]:
        """How a kernel is launched."""
        options = {"num_warps": warps, "num_stages": stages}
        return options | {"launch_pdl": True} if self.early else options

    @contextmanager
    def aside(self, reads: torch.Tensor) -> Iterator[None]:
        """What follows need not be waited for until `join`; the tensor it reads is kept until then."""
        self.held.append(reads)
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def join(self) -> None:
        """Wait for everything that was put aside."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        self.held.clear()


@dataclass
class Product:
    """A dense layer (one tap) or a 3×3 convolution (nine)."""

    name: str
    height: int
    width: int
    inputs: int
    padded: int  # channels of the input as it lies in memory
    outputs: int
    taps: int
    bias: bool
    relu: bool = False
    mask: bool = False  # the input came out of a ReLU
    below: str = ""  # the bias of a convolution below, whose gradient is the column sums of ours
    bias_above: bool = False  # our bias gradient is seen to by the layer above
    table: torch.Tensor | None = None  # (models, rows): the input is all samples, and these are the step's

    def forward(self, x: torch.Tensor, values: Values) -> torch.Tensor:
        """Act(x ⊛ w + b)."""
        x = self._rows(x)
        models, rows = x.shape[:2] if self.table is None else self.table.shape
        weight, bias = self._parameters(values)
        y = weight.new_empty(models, rows, self.outputs)
        usual = self._usual(rows, values)
        bm, bn, bk, warps, stages = self._tile(models, usual, self.outputs, self.padded, y.element_size())
        kernels._forward[cdiv(rows, bm), cdiv(self.outputs, bn), models](
            *(x, weight, bias, y, *self._table(x), rows),
            *(self.height, self.width, self.padded, self.inputs, self.outputs, self.taps),
            *(self.table is not None, self.relu, self.bias, bm, bn, bk, values.precision, values.early),
            **values.launch(warps, stages),
        )
        self._x = x
        return y

    def end(
        self,
        x: torch.Tensor,
        values: Values,
        need: bool,
        labels: torch.Tensor,
        rows: torch.Tensor,
        losses: torch.Tensor,
    ) -> torch.Tensor | None:
        """The last layer there and back, with the loss between: one kernel where it is small, as launches cost most."""
        models, batch = rows.shape
        bb, bc = cover(self._usual(batch, values), 16, 128), cover(self.outputs, 16, 1 << 20)
        weight, bias = self._parameters(values)
        d = weight.new_empty(models, batch, self.outputs)
        if self.table is not None or batch > bb or bb * bc > 2048 or self.inputs > 512:
            z, bb = self.forward(x, values), max(1, 4096 // bc)
            kernels._loss[(models,)](z, labels, rows, rows.stride(0), d, losses, batch, self.outputs, bb, bc)
            return self.backward(d, values, need)
        self._x = x = self._rows(x)
        dx = torch.empty_like(x)
        kernels._last[(models,)](
            *(x, weight, bias, labels, rows, rows.stride(0), d, dx, losses, batch, self.inputs, self.outputs),
            *(self.bias, self.mask, need, bb, bc, cover(self.inputs, 16, 128), values.precision, values.early),
            **values.launch(4, 3),
        )
        with values.aside(d):
            self._weight_gradient(d, values)
        return dx if need else None

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """The input in rows: to a dense layer all pixels of an image are one."""
        return x if self.table is not None else x.view(len(x), -1, self.padded)

    def _parameters(self, values: Values) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight, in the compute type, and bias; a layer without one gets a pointer that nobody follows."""
        weight = values.compute[f"{self.name}.weight"]
        return weight, values.weights[f"{self.name}.bias"] if self.bias else weight

    def _table(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return (x, 0) if self.table is None else (self.table, self.table.stride(0))

    def _usual(self, rows: int, values: Values) -> int:
        """The rows that tiles are chosen for."""
        return max(rows, values.batch * self.height * self.width)

    def backward(self, d: torch.Tensor, values: Values, need: bool) -> torch.Tensor | None:
        """The gradient of the input, where it is needed; gradients of weight and bias into their blocks."""
        dx = self._input_gradient(d, values) if need else None
        with values.aside(d):  # after the input's, which needs the weights as they were
            self._weight_gradient(d, values)
        return dx

    def _input_gradient(self, d: torch.Tensor, values: Values) -> torch.Tensor:
        models, rows, _ = d.shape
        dx = torch.empty_like(self._x)
        usual = self._usual(rows, values)
        bm, bn, bk, warps, stages = self._tile(models, usual, self.inputs, self.outputs, d.element_size())
        sums = Sums(self.below, values, dx, bm)
        kernels._input_gradient[cdiv(rows, bm), cdiv(self.inputs, bn), models](
            *(d, values.compute[f"{self.name}.weight"], self._x, dx, sums.parts, rows),
            *(self.height, self.width, self.inputs, self.outputs, self.taps, self.mask, sums.wanted),
            *(bm, bn, bk, values.precision, values.early),
            **values.launch(warps, stages),
        )
        sums.join()
        return dx

    def _weight_gradient(self, d: torch.Tensor, values: Values) -> None:
        models, rows, _ = d.shape
        usual = self._usual(rows, values)
        bm, bn, bk, warps, stages = self._gradient_tile(usual, d.element_size())
        tiles = cdiv(self.outputs, bm) * cdiv(self.inputs, bn) * self.taps
        update = values.gradients is None
        splits = 1 if update else max(1, min(PROGRAMS // (tiles * models), cdiv(usual, 8 * bk)))
        chunk = cdiv(cdiv(usual, splits), bk) * bk
        at_once = self.bias and (update or chunk <= bk)  # the bias costs nothing where there is no loop
        weight, bias = f"{self.name}.weight", f"{self.name}.bias"
        bias = bias if self.bias else weight
        into = values.weights if values.gradients is None else values.gradients
        dw = into[weight] if splits == 1 else into[weight].new_empty(splits, into[weight].numel())
        kernels._weight_gradient[tiles, splits, models](
            *(d, self._x, dw, into[bias], values.weights[weight], values.weights[bias]),
            *(values.pruned[weight], values.pruned[bias], values.compute[weight], *self._table(self._x)),
            *(values.lr, rows, into[weight].numel(), chunk, self.height, self.width, self.padded, self.inputs),
            *(self.outputs, self.taps, self.table is not None, at_once, update, d.element_size() < 4),
            *(bm, bn, bk, values.precision, values.early),
            **values.launch(warps, stages),
        )
        if splits > 1:
            torch.sum(dw, 0, out=into[weight].view(-1))
        if self.bias and not at_once and not self.bias_above:
            column_sums(d, into[bias])

    def _gradient_tile(self, rows: int, size: int) -> tuple[int, int, int, int, int]:
        """Outputs, inputs and rows of a tile; warps; stages. Measured on an H200 for the shapes of cnn and vgg16."""
        outputs, inputs = cover(self.outputs, 16, 64), cover(self.inputs, 16, 64)
        if size == 4 and rows < 128:
            return outputs, cover(self.inputs, 16, 32), 32, 4, 1
        if size == 4:
            return outputs, inputs, 32, 4, 3
        if rows < 128:
            return outputs, cover(self.inputs, 16, 128), cover(rows, 32, 64), 4, 3
        least = min(self.outputs, self.inputs)
        if least >= 256 or (rows >= 4096 and least >= 128):
            return 128, 128, 64, 8 if max(self.outputs, self.inputs) > 128 else 4, 3
        return outputs, inputs, 64, 4, 4

    def _tile(self, models: int, rows: int, outputs: int, inputs: int, size: int) -> tuple[int, int, int, int, int]:
        """Rows, outputs and inputs of a tile; warps; stages of the pipeline. Measured likewise."""
        if rows < 128:
            few = models * cdiv(outputs, 64) < PROGRAMS // 4  # small tiles, so that every multiprocessor has one
            if few and size == 4 and inputs > 128:
                return 16, cover(outputs, 16, 32), 128, 4, 3
            if few and size == 4:
                return cover(rows, 16, 32), 16, cover(inputs, 16, 64), 4, 2
            wide = 32 if few else 64
            return cover(rows, 32, 64), cover(outputs, 16, wide), cover(inputs, 16, 128 if few else 64), 4, 3
        if size == 4:
            return 64, cover(outputs, 16, 64), cover(inputs, 16, 32), 4, 3
        wide = outputs >= 128
        warps = 8 if wide or inputs <= outputs == 64 else 4
        return 128, 128 if wide else cover(outputs, 16, 64), cover(inputs, 16, 64), warps, 3


def blocks_of(rows: int, channels: int, models: int) -> tuple[int, int, int, int]:
    """For a pass over (models, rows, channels): rows and channels of a block, chunks of rows, rows a chunk."""
    br, bc = 64, cover(channels, 16, 64)
    splits = max(1, min(4 * PROGRAMS // (models * cdiv(channels, bc)), cdiv(rows, 4 * br)))
    return br, bc, splits, cdiv(cdiv(rows, splits), br) * br


class Sums:
    """Column sums of a gradient, left by the kernel that computes it: the bias gradient of the layer below."""

    def __init__(self, below: str, values: Values, dx: torch.Tensor, block: int) -> None:
        models, rows, channels = dx.shape
        self._into = values.gradients[below] if below and values.gradients is not None else None
        self.wanted = self._into is not None
        self.parts = torch.empty(models, cdiv(rows, block), channels, device=dx.device) if self.wanted else dx

    def join(self) -> None:
        """Write the bias gradient."""
        if self._into is not None:
            torch.sum(self.parts, 1, out=self._into)


def column_sums(x: torch.Tensor, out: torch.Tensor) -> None:
    """Σ over the rows of (models, rows, channels)."""
    models, rows, c = x.shape
    br, bc, splits, chunk = blocks_of(rows, c, models)
    parts = torch.empty(models, splits, c, device=x.device)
    kernels._column_sums[cdiv(c, bc), splits, models](x, parts, rows, chunk, c, br, bc)
    torch.sum(parts, 1, out=out)


@dataclass
class Norm:
    """Batch norm over the rows of each model."""

    name: str
    channels: int
    eps: float
    rate: float
    relu: bool = False
    mask: bool = False
    below: str = ""

    def forward(self, x: torch.Tensor, values: Values) -> torch.Tensor:
        """Normalise by the batch's moments, and let the running statistics follow."""
        models, rows, c = x.shape
        br, bc, splits, chunk = blocks_of(rows, c, models)
        parts = torch.empty(2, models, splits, c, device=x.device)
        passes._moments[cdiv(c, bc), splits, models](x, parts[0], parts[1], rows, chunk, c, br, bc)
        self._centre, self._scale = torch.empty(2, models, c, device=x.device)
        passes._moments_end[cdiv(c, 16), models](
            *(x, parts[0], parts[1], self._centre, self._scale),
            *(values.statistics[f"{self.name}.running_mean"], values.statistics[f"{self.name}.running_var"]),
            *(rows, self.eps, self.rate, c, splits, cover(splits, 1, 4096), 16),
        )
        y = torch.empty_like(x)
        gamma, beta = values.weights[f"{self.name}.weight"], values.weights[f"{self.name}.bias"]
        passes._normalise[cdiv(rows, br), cdiv(c, bc), models](
            x, y, self._centre, self._scale, gamma, beta, rows, c, self.relu, br, bc
        )
        self._x = x
        return y

    def backward(self, d: torch.Tensor, values: Values, need: bool) -> torch.Tensor | None:
        """Gradients of scale and shift into their blocks, and of the input."""
        assert values.gradients is not None
        models, rows, c = d.shape
        br, bc, splits, chunk = blocks_of(rows, c, models)
        parts = torch.empty(2, models, splits, c, device=d.device)
        passes._normalise_sums[cdiv(c, bc), splits, models](
            d, self._x, self._centre, self._scale, parts[0], parts[1], rows, chunk, c, br, bc
        )
        beta, gamma = values.gradients[f"{self.name}.bias"], values.gradients[f"{self.name}.weight"]
        torch.sum(parts[0], 1, out=beta)
        torch.sum(parts[1], 1, out=gamma)
        dx = torch.empty_like(d)
        below = Sums(self.below, values, dx, br)
        passes._normalise_gradient[cdiv(rows, br), cdiv(c, bc), models](
            *(d, self._x, dx, self._centre, self._scale, values.weights[f"{self.name}.weight"], beta, gamma),
            *(below.parts, rows, c, self.mask, below.wanted, br, bc),
        )
        below.join()
        return dx


@dataclass
class Pool:
    """The largest of every 2×2 pixels."""

    height: int
    width: int
    channels: int
    mask: bool = False
    below: str = ""
    relu = False

    def forward(self, x: torch.Tensor, values: Values) -> torch.Tensor:
        """A quarter of the rows."""
        models, rows, c = x.shape
        y = x.new_empty(models, rows // 4, c)
        self._which = torch.empty_like(y, dtype=torch.int8)
        bc = cover(c, 16, 64)
        passes._pool[cdiv(y.shape[0] * y.shape[1], 32), cdiv(c, bc)](
            x, y, self._which, y.shape[0] * y.shape[1], self.height, self.width, c, 32, bc
        )
        self._y = y
        return y

    def backward(self, d: torch.Tensor, values: Values, need: bool) -> torch.Tensor | None:
        """The gradient at the pixels that were largest."""
        models, rows, c = d.shape
        dx = d.new_empty(models, 4 * rows, c)
        bc = cover(c, 16, 64)
        below = Sums(self.below, values, dx, 4 * 32)
        passes._pool_gradient[cdiv(rows, 32), cdiv(c, bc), models](
            *(d, self._y, self._which, dx, below.parts, rows, self.height, self.width, c),
            *(self.mask, below.wanted, 32, bc),
        )
        below.join()
        return dx


@dataclass
class Drop:
    """Dropout from keys."""

    p: float
    salt: int
    pixels: int  # of a sample: draws are numbered as torch lays an image out, channel by channel
    mask: bool = False
    relu = False
    keys: Any = None  # set before every step

    def forward(self, x: torch.Tensor, values: Values) -> torch.Tensor:
        """Zero a random part of every model's batch and scale up the rest."""
        self._x = x
        return self._drop(x, False)

    def backward(self, d: torch.Tensor, values: Values, need: bool) -> torch.Tensor | None:
        """The same part of the gradient."""
        return self._drop(d, self.mask)

    def _drop(self, x: torch.Tensor, mask: bool) -> torch.Tensor:
        y, count = torch.empty_like(x), x.shape[1] * x.shape[2]
        passes._dropout[cdiv(count, 1024), len(x)](
            *(x, self._x, y, self.keys, count, self.p, 1 / (1 - self.p), salted(self.salt)),
            *(self.pixels, self._x.shape[2], mask, 1024),
        )
        return y


Layer = Product | Norm | Pool | Drop
