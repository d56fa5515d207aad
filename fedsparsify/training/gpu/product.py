"""Dense layers and convolutions of a GPU stack: their kernels, and the tiles that those are launched with.

A ReLU is part of the layer before it. The kernel that computes the gradient of its output also masks it, so that a ReLU
has no kernel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import loss_kernels, pointwise_kernels, product_kernels
from .launch import PROGRAMS, ColumnSums, GraphLayer, StepTensors, cdiv, column_sums, cover


@dataclass
class Product(GraphLayer):
    """A dense layer, to which all pixels of an image are one row, or a convolution."""

    weight: str
    bias: str | None
    dense: bool
    height: int
    width: int
    inputs: int
    padded: int  # channels of the input as it lies in memory
    side: int = 1  # of the kernel
    stride: int = 1
    padding: int = 0
    bias_above: bool = False  # the layer above computes our bias gradient
    table: torch.Tensor | None = None  # (models, rows): the input is all samples, and these are the step's

    @property
    def channels(self) -> int:
        """Of the input as it lies in memory: those of a first convolution are padded."""
        return self.image[0] if self.dense else self.padded

    @property
    def geometry(self) -> tuple[int, ...]:
        """Rows and columns of the input and of the output, the kernel's side, stride and padding."""
        sides = (self.height, self.width)
        outputs = ((side + 2 * self.padding - self.side) // self.stride + 1 for side in sides)
        return (*sides, *outputs, self.side, self.stride, self.padding)

    @property
    def out_pixels(self) -> int:
        """Rows of the output per sample."""
        _, _, rows, columns, *_ = self.geometry
        return rows * columns

    def forward(self, x: torch.Tensor, tensors: StepTensors, added: torch.Tensor | None = None) -> torch.Tensor:
        """Act(x ⊛ w + b)."""
        x = self._rows(x)
        models, rows = x.shape[:2] if self.table is None else self.table.shape
        rows_in, rows = rows, rows // (self.height * self.width) * self.out_pixels
        weight, bias = self._parameters(tensors)
        y = weight.new_empty(models, rows, self.outputs)
        usual = max(rows, tensors.batch * self.out_pixels)
        bm, bn, bk, warps, stages = self._tile(models, usual, self.outputs, self.padded, y.element_size())
        product_kernels._forward[cdiv(rows, bm), cdiv(self.outputs, bn), models](
            *(x, weight, bias, y, *self._table(x), rows, rows_in, *self.geometry),
            *(self.padded, self.inputs, self.outputs),
            *(self.table is not None, self.relu, self.bias is not None, bm, bn, bk, tensors.precision, tensors.early),
            **tensors.launch(warps, stages),
        )
        self._x = x
        return y

    def train_as_last(
        self,
        x: torch.Tensor,
        tensors: StepTensors,
        need: bool,
        labels: torch.Tensor,
        rows: torch.Tensor,
        losses: torch.Tensor,
    ) -> torch.Tensor | None:
        """Forward, loss and backward of the last layer: one kernel where it is small, as launches cost most."""
        models, batch = rows.shape
        bb, bc = cover(max(batch, tensors.batch), 16, 128), cover(self.outputs, 16, 1 << 20)
        weight, bias = self._parameters(tensors)
        d = weight.new_empty(models, batch, self.outputs)
        if self.table is not None or batch > bb or bb * bc > 2048 or self.inputs > 512:
            z, bb = self.forward(x, tensors), max(1, 4096 // bc)
            loss_kernels._loss[(models,)](
                z, labels, rows, rows.stride(0), d, losses, batch, self.outputs, bb, bc, tensors.smoothing
            )
            return self.backward(d, tensors, need)
        self._x = x = self._rows(x)
        dx = torch.empty_like(x)
        loss_kernels._last[(models,)](
            *(x, weight, bias, labels, rows, rows.stride(0), d, dx, losses, batch, self.inputs, self.outputs),
            *(
                self.bias is not None,
                self.mask,
                need,
                bb,
                bc,
                cover(self.inputs, 16, 128),
                tensors.precision,
                tensors.early,
            ),
            tensors.smoothing,
            **tensors.launch(4, 3),
        )
        with tensors.on_side_stream(d):
            self._weight_gradient(d, tensors)
        return dx if need else None

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """The input in rows: to a dense layer all pixels of an image are one."""
        return x if self.table is not None else x.view(len(x), -1, self.padded)

    def _parameters(self, tensors: StepTensors) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight, in the compute type, and bias; a layer without a bias gets a pointer that no kernel reads."""
        weight = tensors.compute[self.weight]
        return weight, tensors.weights[self.bias] if self.bias else weight

    def _table(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return (x, 0) if self.table is None else (self.table, self.table.stride(0))

    def backward(
        self, d: torch.Tensor, tensors: StepTensors, need: bool, more: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The gradient of the input, where it is needed; gradients of weight and bias into their blocks."""
        dx = self._input_gradient(d, tensors, more) if need else None
        with tensors.on_side_stream(d):  # after the input's, which needs the weights as they were
            self._weight_gradient(d, tensors)
        return dx

    def _input_gradient(self, d: torch.Tensor, tensors: StepTensors, more: torch.Tensor | None) -> torch.Tensor:
        models, rows_in, _ = self._x.shape
        dx, step = torch.empty_like(self._x), self.stride
        phase = cdiv(self.height, step) * cdiv(self.width, step)  # pixels that the same taps meet, per sample
        rows = rows_in // (self.height * self.width) * phase
        usual = max(rows, tensors.batch * phase)
        bm, bn, bk, warps, stages = self._tile(models, usual, self.inputs, self.outputs, d.element_size())
        sums = ColumnSums(self.below, tensors, dx, bm)
        product_kernels._input_gradient[cdiv(rows, bm) * step * step, cdiv(self.inputs, bn), models](
            *(d, tensors.compute[self.weight], self._x, d if more is None else more, dx, sums.parts),
            *(d.shape[1], rows_in, *self.geometry, self.inputs, self.outputs),
            *(self.mask, sums.wanted, more is not None, bm, bn, bk, tensors.precision, tensors.early),
            **tensors.launch(warps, stages),
        )
        sums.join()
        return dx

    def _weight_gradient(self, d: torch.Tensor, tensors: StepTensors) -> None:
        models, rows, _ = d.shape
        rows_in = rows // self.out_pixels * self.height * self.width
        usual = max(rows, tensors.batch * self.out_pixels)
        bm, bn, bk, warps, stages = self._gradient_tile(usual, d.element_size())
        tiles = cdiv(self.outputs, bm) * cdiv(self.inputs, bn) * self.side * self.side
        update = tensors.gradients is None
        splits = 1 if update else max(1, min(PROGRAMS // (tiles * models), cdiv(usual, 8 * bk)))
        chunk = cdiv(cdiv(usual, splits), bk) * bk
        at_once = self.bias is not None and (update or chunk <= bk)  # the bias costs nothing where there is no loop
        weight, bias = self.weight, self.bias or self.weight
        into = tensors.weights if tensors.gradients is None else tensors.gradients
        self._find_threshold(rows_in, tensors)
        limit = tensors.rates if tensors.shares is None else tensors.thresholds[weight]
        dw = into[weight] if splits == 1 else into[weight].new_empty(splits, into[weight].numel())
        product_kernels._weight_gradient[tiles, splits, models](
            *(d, self._x, dw, into[bias], tensors.weights[weight], tensors.weights[bias]),
            *(tensors.pruned[weight], tensors.pruned[bias], tensors.compute[weight], *self._table(self._x)),
            *(tensors.rates, tensors.decay, limit, rows, rows_in, into[weight].numel(), chunk, *self.geometry),
            *(self.padded, self.inputs, self.outputs),
            *(self.table is not None, at_once, update, d.element_size() < 4, tensors.shares is not None),
            *(bm, bn, bk, tensors.precision, tensors.early),
            **tensors.launch(warps, stages),
        )
        if splits > 1:
            torch.sum(dw, 0, out=into[weight].view(-1))
        if self.bias and not at_once and not self.bias_above:
            column_sums(d, into[bias])

    def _find_threshold(self, rows: int, tensors: StepTensors) -> None:
        """The least magnitude of an input that counts in weight gradients: a convolution finds it in the first step."""
        if tensors.shares is None or not (tensors.first or self.dense):
            return
        x = self._x
        bits = x.view(torch.int32 if x.element_size() == 4 else torch.int16)
        pointwise_kernels._smallest_kept[(len(x),)](
            *(bits, tensors.shares[self.weight], tensors.thresholds[self.weight], x[0].numel(), rows * self.inputs),
            *(8 * x.element_size() - 1, 4096),
            num_warps=8,
        )

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
