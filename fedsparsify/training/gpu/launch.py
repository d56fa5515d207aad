"""What the layers of a GPU stack share: the tensors of a step, launch options, grid sizes, and sums over rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field

import torch

from . import product_kernels

Image = tuple[int, int, int]  # channels, rows, columns; a vector has one row and one column
Blocks = dict[str, torch.Tensor]
PROGRAMS = 528  # enough to fill a large GPU: four for each of its multiprocessors


def cdiv(a: int, b: int) -> int:
    """Division rounded up."""
    return -(-a // b)


def cover(n: int, least: int, most: int) -> int:
    """The power of two that covers n, within bounds."""
    return max(least, min(most, 1 << (n - 1).bit_length()))


@dataclass(frozen=True)
class StepTensors:
    """The tensors of the models that take part in a step, and how kernels are launched on them."""

    weights: Blocks  # float32
    compute: Blocks  # the same in the compute type
    statistics: Blocks
    pruned: Blocks
    gradients: Blocks | None  # None: plain SGD, applied as the gradients are computed
    precision: str  # of float32 products: "tf32", or "tf32x3" for the accuracy of float32
    batch: int  # the full batch size: the smaller batch at an epoch's end uses the same kernels
    rates: torch.Tensor  # (models,), learning rates of plain SGD, read by the kernels: they change from step to step
    decay: float = 0.0  # weight decay of plain SGD
    smoothing: float = 0.0  # of labels
    early: bool = False  # a kernel may be launched while the one before still runs (programmatic dependent launch)
    # Of weights that are not zero, (models,). None: weight gradients are of all inputs, not of the largest.
    shares: Blocks | None = None
    thresholds: Blocks = field(default_factory=dict)  # (models,), the least magnitude of an input that counts
    first: bool = False  # the models' first step of a request
    fixed_norms: bool = False  # batch norms take the running statistics
    side: torch.cuda.Stream | None = None  # on which small gradients are computed
    held: list[torch.Tensor] = field(default_factory=list)  # what the side stream still reads

    def launch(self, warps: int, stages: int) -> dict[str, int | bool]:
        """Options of a launch."""
        options: dict[str, int | bool] = {"num_warps": warps, "num_stages": stages}
        return options | {"launch_pdl": True} if self.early else options

    @contextmanager
    def on_side_stream(self, reads: torch.Tensor) -> Iterator[None]:
        """Launch what follows on the side stream; the tensor that it reads is kept until `join`."""
        self.held.append(reads)
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def join(self) -> None:
        """Wait for the side stream."""
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        self.held.clear()


@dataclass
class GraphLayer:
    """A layer's place in the network, and what is decided about it before the first step."""

    source: str  # the value that it reads
    output: str  # and the one that it makes
    image: Image  # what it reads
    outputs: int  # channels of the output
    _: KW_ONLY
    added: str = ""  # a second value, added to the output before the ReLU; the output's gradient is its own, too
    relu: bool = False
    mask: bool = False  # zero the input's gradient where the ReLU that made the input was inactive
    below: str = ""  # the bias of a convolution below, whose gradient is the column sums of ours
    more: bool = False  # the input has gradients from layers above: ours is added to them
    unmasked: bool = False  # no reader can zero the gradient where our own ReLU was inactive
    frees: tuple[str, ...] = ()  # values that no later layer reads

    @property
    def pixels(self) -> int:
        """Rows of the input per sample."""
        return self.image[1] * self.image[2]

    @property
    def channels(self) -> int:
        """Of the input as it lies in memory."""
        return self.image[0]


def blocks_of(rows: int, channels: int, models: int) -> tuple[int, int, int, int]:
    """For a kernel over (models, rows, channels): rows and channels per block, chunks of rows, rows per chunk."""
    br, bc = 64, cover(channels, 16, 64)
    splits = max(1, min(4 * PROGRAMS // (models * cdiv(channels, bc)), cdiv(rows, 4 * br)))
    return br, bc, splits, cdiv(cdiv(rows, splits), br) * br


class ColumnSums:
    """Column sums of a gradient, left by the kernel that computes it: the bias gradient of the layer below."""

    def __init__(self, below: str, tensors: StepTensors, dx: torch.Tensor, block: int) -> None:
        models, rows, channels = dx.shape
        self._into = tensors.gradients[below] if below and tensors.gradients is not None else None
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
    product_kernels._column_sums[cdiv(c, bc), splits, models](x, parts, rows, chunk, c, br, bc)
    torch.sum(parts, 1, out=out)
