"""The rows of one client's training step: forward, and backward.

In: the planes of a network, its streams, and the largest batch. Out: a `Program` that runs a batch through the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....graph import INPUT
from ....model import Layout
from ....native.lines import zeros
from .plan import Add, Convolution, Dropout, Flatten, Layer, Norm, Pool, Relu
from .planes import Plane, Planes, output_shape
from .rows import ADD, CODES, MASKED, RELU, RELU_POOL, ROW, STORE
from .streams import Stream, Streams

Array = NDArray[Any]
Run = Callable[..., object]


def _at(array: Array) -> int:
    return array.ctypes.data


class Program:
    """Memory and rows for one model in training, on one thread."""

    def __init__(self, planes: Planes, layout: Layout, batch: int, run: Run) -> None:
        self.planes, self._plan, self._run = planes, planes.plan, run
        self._lanes = planes.vector // 4
        self._groups = -(-batch // self._lanes)
        self._held: list[Array] = []
        self._bits_bytes = max(1, self._lanes // 8)
        weights = {layer.weight for layer in self._plan.convolutions}
        small = [spec for spec in layout.tensors if spec.name not in weights]
        self._small = zeros(max(1, sum(spec.size for spec in small)))
        self._small_gradient = zeros(self._small.size)
        ends = np.cumsum([0, *(spec.size for spec in small)])
        self._small_at = {spec.name: 4 * int(end) for spec, end in zip(small, ends[:-1], strict=True)}
        self.statistics = zeros(max(1, layout.total - layout.trainable))
        self._statistics_at = {
            spec.name: 4 * (layout.slices[spec.name].start - layout.trainable) for spec in layout.statistics
        }
        self._values, self._gradients, self._unpooled = (
            {name: (plane, self._keep(plane.memory(self._groups)) + plane.corner) for name, plane in group.items()}
            for group in (planes.values, planes.gradients, planes.unpooled)
        )
        classes = self._plan.shapes[self._plan.output][0]
        self.logits, self.logits_gradient = zeros(batch * classes), zeros(batch * classes)
        self._bits: dict[str, int] = {}
        self._factors: dict[str, tuple[Plane, int]] = {}
        self._statistics_of: dict[str, int] = {}
        widest = max((layer.kernel[0] for layer in self._plan.convolutions), default=1)
        inputs = max((planes.values[layer.inputs[0]].shape[0] for layer in self._plan.convolutions), default=1)
        self._sums = self._keep(zeros(max(widest, inputs) * 16 * self._lanes))
        self._constants: dict[tuple[float, int], int] = {}
        self._readers = Counter([self._plan.output, *(n for layer in self._plan.layers for n in layer.inputs)])
        self._makers = {layer.output: layer for layer in self._plan.layers}
        self.table = np.zeros(0, ROW)

    @property
    def bytes(self) -> int:
        """Memory of values, gradients and what belongs to them."""
        return sum(array.nbytes for array in self._held)

    def _keep(self, array: Array) -> int:
        """Keep an array alive as long as this program; returns its address."""
        self._held.append(array)
        return _at(array)

    def bind(self, streams: Streams) -> None:
        """Take over a mask."""
        self.streams = streams
        self._weights, self._gradient = zeros(max(1, streams.weights)), zeros(max(1, streams.weights))
        self._bound: list[Array] = []  # as long as this mask
        self._small.fill(0)
        rows: list[Array] = []
        self._write_images(rows)
        for layer in self._plan.layers:
            self._forward(rows, layer)
        plane, at = self._values[self._plan.output]
        rows.append(self._row("logits", x=(plane, at), y=_at(self.logits), channels=plane.shape[0]))
        self._forward_rows = len(rows)
        self._write_backward(rows)
        self.table = np.concatenate(rows)

    # One row.

    def _row(self, op: str, shape: tuple[int, int, int] | None = None, **fields: Any) -> Array:
        """A row; x, y and z are planes with an address, or addresses."""
        row = np.zeros(1, ROW)
        row["op"] = CODES[op]
        if shape is not None:
            row["channels"], row["rows"], row["columns"] = shape
        for name, value in fields.items():
            if isinstance(value, tuple):
                plane, at = value
                row[name] = at
                row[f"{name}_group"], row[f"{name}_channel"] = plane.group, plane.channel
                row[f"{name}_row"], row[f"{name}_column"] = plane.row, plane.vector
            else:
                row[name] = value
        return row

    def _with_bits(self, row: Array, name: str, shape: tuple[int, int, int], per_cell: int) -> None:
        """Give a row the bits of a value, so many words per pixel."""
        size = per_cell * self._bits_bytes
        if name not in self._bits:
            self._bits[name] = self._keep(zeros(self._groups * int(np.prod(shape)) * size, np.uint8))
        row["bits"], row["bits_row"] = self._bits[name], shape[2] * size
        row["bits_channel"] = shape[1] * shape[2] * size
        row["bits_group"] = shape[0] * shape[1] * shape[2] * size

    def _write_images(self, rows: list[Array]) -> None:
        plane, at = self._values[INPUT]
        rows.append(self._row("images", plane.shape, y=(plane, at), per_image=int(np.prod(plane.shape))))

    # Forward.

    def _forward(self, rows: list[Array], layer: Layer) -> None:
        source, target = self._values[layer.inputs[0]], self._values[layer.output]
        match layer:
            case Convolution():
                rows.append(self._convolution(layer, source, target))
            case Norm():
                rows.append(self._norm("norm", layer, x=source, y=target))
            case Pool():
                rows.append(self._pool("mean_pool" if layer.mean else "max_pool", layer, source, target))
            case Add():
                second = self._values[layer.inputs[1]]
                rows.append(self._row("add", target[0].shape, x=source, y=target, z=second, relu=layer.relu))
            case Relu():
                rows.append(self._row("copy", target[0].shape, x=source, y=target, relu=1))
            case Dropout():
                factors = self._factors_of(layer)
                rows.append(self._row("draw", target[0].shape, y=factors, per_image=int(np.prod(target[0].shape))))
                rows.append(self._row("multiply", target[0].shape, x=source, y=target, z=factors))
            case Flatten():
                rows.append(self._flat("copy", source, target, "y"))

    def _convolution(self, layer: Convolution, source: tuple[Plane, int], target: tuple[Plane, int]) -> Array:
        streams, shape = self.streams.layers[layer.output], output_shape(layer, self._plan.shapes)
        mode = RELU_POOL if layer.pooled else RELU if layer.relu else STORE
        bias = _at(self._small) + self._small_at[layer.bias] if layer.bias else 0
        row = self._row("convolution", shape, x=source, y=target, mode=mode, bias=bias, sums=self._sums)
        self._walk(row, streams.forward, _at(self._weights) + 4 * streams.start)
        self._strided_input(row, layer)
        if layer.relu:
            self._with_bits(row, layer.output, target[0].shape, 4 if layer.pooled else 1)
        self._prefetched(row, layer.kernel[2:], layer.padding)
        return self._flattened(row)

    def _walk(self, row: Array, stream: Stream, weights: int) -> None:
        row["blocks"], row["block"], row["inputs"] = stream.blocks, stream.block, stream.inputs
        row["counts"], row["offsets"], row["weights"] = _at(stream.counts), _at(stream.offsets), weights

    def _prefetched(self, row: Array, kernel: tuple[int, ...], before: tuple[int, ...]) -> None:
        """Say what the next tile reads that a tile does not; windows begin `before` pixels above and on the left."""
        tall = 4 if self._lanes == 16 else 2
        if not row["near"][0] or int(row["rows"][0]) % tall or int(row["columns"][0]) % 4:
            return
        x_row, x_column = int(row["x_row"][0]), int(row["x_column"][0])
        row["prefetched"], row["window_rows"] = 1, kernel[0]
        row["next_column"] = (4 + kernel[1] - 1 - before[1]) * x_column - before[0] * x_row
        row["next_row"] = (tall + kernel[0] - 1 - before[0]) * x_row - before[1] * x_column

    def _strided_input(self, row: Array, layer: Convolution) -> None:
        row["x_row"] *= layer.stride[0]
        row["x_column"] *= layer.stride[1]
        row["near"] = layer.stride[1] == 1

    def _flattened(self, row: Array) -> Array:
        """A convolution of one pixel takes its tiles over the groups of images."""
        if int(row["rows"][0]) == int(row["columns"][0]) == 1:
            row["flat"] = 1
            for name in ("x", "y", "bits"):
                row[f"{name}_row"] = row[f"{name}_group"]
        return row

    def _norm(self, op: str, layer: Norm, **planes: Any) -> Array:
        channels = self._values[layer.output][0].shape[0]
        if layer.output not in self._statistics_of:
            self._statistics_of[layer.output] = self._keep(zeros(2 * channels))
        mean = self._statistics_of[layer.output]
        running = [_at(self.statistics) + self._statistics_at[name] for name in (layer.running_mean, layer.running_var)]
        row = self._row(op, self._values[layer.output][0].shape, **planes, relu=layer.relu, sums=self._sums)
        row["mean"], row["deviation"] = mean, mean + 4 * channels
        row["running_mean"], row["running_var"] = running
        row["scale"], row["shift"] = (
            _at(self._small) + self._small_at[name] if name else self._constant(usual, channels)
            for name, usual in ((layer.weight, 1.0), (layer.bias, 0.0))
        )
        row["eps"], row["momentum"] = layer.eps, layer.momentum
        return row

    def _constant(self, value: float, count: int) -> int:
        if (value, count) not in self._constants:
            self._constants[value, count] = self._keep(np.full(count, value, np.float32))
        return self._constants[value, count]

    def _pool(self, op: str, layer: Pool, x: tuple[Plane, int], y: tuple[Plane, int]) -> Array:
        bounds = np.array([b[k] for axis in (layer.rows, layer.columns) for k in (0, 1) for b in axis], np.int64)
        factors = np.array(layer.factors, np.float32)
        self._bound += [bounds, factors]
        row = self._row(op, y[0].shape, x=x, y=y, windows=_at(bounds), scale=_at(factors) if layer.mean else 0)
        row["window_rows"], row["window_columns"] = layer.window
        if not layer.mean:
            self._with_bits(row, layer.output, y[0].shape, layer.window[0] * layer.window[1])
        return row

    def _factors_of(self, layer: Dropout) -> tuple[Plane, int]:
        if layer.output not in self._factors:
            plane = Plane(self._plan.shapes[layer.output], self.planes.vector)
            self._factors[layer.output] = plane, self._keep(plane.memory(self._groups))
        return self._factors[layer.output]

    def _flat(self, op: str, x: tuple[Plane, int], y: tuple[Plane, int], flat: str, accumulate: bool = False) -> Array:
        """A copy between an image and the channels of one pixel; `flat` says which of both is flat."""
        image = (x if flat == "y" else y)[0].shape
        row, vector = self._row(op, image, x=x, y=y, accumulate=accumulate), self.planes.vector
        row[f"{flat}_channel"], row[f"{flat}_row"] = image[1] * image[2] * vector, image[2] * vector
        return row

    # Backward.

    def _write_backward(self, rows: list[Array]) -> None:
        self._written: set[str] = set()  # gradients that a row has written
        output = self._gradients[self._plan.output]
        channels = output[0].shape[0]
        rows.append(self._row("logits_back", x=_at(self.logits_gradient), y=output, channels=channels))
        self._written.add(self._plan.output)
        for layer in reversed(self._plan.layers):
            if layer.output in self._written:
                self._backward(rows, layer)

    def _target(self, name: str) -> tuple[tuple[Plane, int] | None, bool]:
        """Where a value's gradient goes (None: nobody needs it), and whether something is there already."""
        if name not in self._gradients:
            return None, False
        there = name in self._written
        self._written.add(name)
        return self._gradients[name], there

    def _backward(self, rows: list[Array], layer: Layer) -> None:
        given = self._gradients[layer.output]
        if isinstance(layer, Convolution):
            self._convolution_back(rows, layer, given)
            return
        if isinstance(layer, Norm):
            target, there = self._target(layer.inputs[0])
            gradients = [
                _at(self._small_gradient) + self._small_at[name] if name else 0 for name in (layer.weight, layer.bias)
            ]
            row = self._norm("norm_back", layer, x=target or 0, y=given, z=self._values[layer.inputs[0]])
            row["accumulate"], row["gradient"], row["bias_gradient"] = there, *gradients
            rows.append(row)
            return
        for name in layer.inputs:
            target, there = self._target(name)
            if target is None:
                continue
            shape = target[0].shape
            match layer:
                case Pool():
                    self._pool_back(rows, layer, target, given, there)
                case Relu() | Add(relu=True):
                    made = self._values[layer.output]
                    rows.append(self._row("relu_back", shape, x=given, y=target, z=made, accumulate=there))
                case Add():
                    rows.append(self._row("copy", shape, x=given, y=target, accumulate=there))
                case Dropout():
                    factors = self._factors[layer.output]
                    rows.append(self._row("multiply", shape, x=given, y=target, z=factors, accumulate=there))
                case Flatten():
                    rows.append(self._flat("copy", given, target, "x", there))

    def _pool_back(
        self, rows: list[Array], layer: Pool, target: tuple[Plane, int], given: tuple[Plane, int], there: bool
    ) -> None:
        if not there:
            rows.append(self._row("clear", target[0].shape, y=target))
        row = self._pool("mean_pool_back" if layer.mean else "max_pool_back", layer, target, given)
        row["accumulate"] = 1
        rows.append(row)

    def _convolution_back(self, rows: list[Array], layer: Convolution, given: tuple[Plane, int]) -> None:
        shape = output_shape(layer, self._plan.shapes)
        if layer.pooled:
            given = self._unpool(rows, layer, given)
        elif layer.relu and not self._masked_by_reader(layer):
            row = self._row("mask", shape, y=given)
            self._with_bits(row, layer.output, shape, 1)
            rows.append(row)
        streams = self.streams.layers[layer.output]
        row = self._row("weight_gradient", shape, x=self._values[layer.inputs[0]], y=given)
        self._walk(row, streams.forward, 0)
        self._strided_input(row, layer)
        row["gradient"] = _at(self._gradient) + 4 * streams.start
        row["bias_gradient"] = _at(self._small_gradient) + self._small_at[layer.bias] if layer.bias else 0
        self._prefetched(row, layer.kernel[2:], layer.padding)
        rows.append(self._flattened(row))
        target, there = self._target(layer.inputs[0])
        if target is not None:
            self._input_gradient(rows, layer, given, target, there)

    def _unpool(self, rows: list[Array], layer: Convolution, given: tuple[Plane, int]) -> tuple[Plane, int]:
        """The gradient before a pool of 2 × 2."""
        whole = self._unpooled[layer.output]
        half = given[0].shape
        down, right = (tuple((2 * k, 2 * k + 2) for k in range(side)) for side in half[1:])
        squares = Pool((), layer.output, False, down, right)
        rows.append(self._pool("max_pool_back", squares, whole, given))
        return whole

    def _masked_by_reader(self, layer: Convolution) -> bool:
        """Whether a convolution's ReLU is undone by the convolution that reads its output."""
        if not layer.relu or layer.pooled or self._readers[layer.output] != 1:
            return False
        readers = [other for other in self._plan.layers if layer.output in other.inputs]
        return bool(readers) and isinstance(readers[0], Convolution) and readers[0].stride == (1, 1)

    def _input_gradient(
        self,
        rows: list[Array],
        layer: Convolution,
        given: tuple[Plane, int],
        target: tuple[Plane, int],
        there: bool,
    ) -> None:
        streams = self.streams.layers[layer.output]
        maker = self._makers.get(layer.inputs[0])
        masked = isinstance(maker, Convolution) and self._masked_by_reader(maker)
        plane, at = target
        for part in streams.backward:
            transposed = zeros(max(1, part.stream.order.size))
            self._bound.append(transposed)
            row = self._row("permute", x=_at(self._weights) + 4 * streams.start, y=_at(transposed))
            row["order"], row["survivors"] = _at(part.stream.order), part.stream.order.size
            rows.append(row)
            corner = at + part.first_row * plane.row + part.first_column * plane.vector
            shape = plane.shape[0], part.rows, part.columns
            row = self._row("convolution", shape, x=given, y=(plane, corner), near=1, sums=self._sums)
            row["mode"] = MASKED if masked else ADD if there else STORE
            row["y_row"] *= layer.stride[0]
            row["y_column"] *= layer.stride[1]
            self._walk(row, part.stream, _at(transposed))
            if masked:
                self._with_bits(row, layer.inputs[0], plane.shape, 1)
            if layer.stride == (1, 1):
                before = tuple(k - 1 - pad for k, pad in zip(layer.kernel[2:], layer.padding, strict=True))
                self._prefetched(row, layer.kernel[2:], before)
            rows.append(self._flattened(row))

    # A step.

    def _take(self, batch: int) -> None:
        """Set the batch size of all rows."""
        groups, flat = -(-batch // self._lanes), self.table["flat"] == 1
        self.table["batch"] = batch
        self.table["groups"] = np.where(flat, 1, groups)
        self.table["rows"][flat] = groups

    def forward(self, x: Array, survivors: Array, draws: dict[str, tuple[int, int, float, float]]) -> None:
        """Logits of a batch (batch, …), with the survivors' weights; `draws` has numbers for each dropout."""
        split = self.streams.weights
        self._weights[:split] = survivors[:split]
        self._small[self.streams.small] = survivors[split:]
        self._take(len(x))
        self.table["x"][0] = _at(x)
        dropouts = (layer.output for layer in self._plan.layers if isinstance(layer, Dropout))
        for k, name in zip(np.flatnonzero(self.table["op"] == CODES["draw"]), dropouts, strict=True):
            for field, value in zip(("inner", "outer", "threshold", "factor"), draws[name], strict=True):
                self.table[field][k] = value
        self._run(_at(self.table), self._forward_rows)

    def backward(self) -> Array:
        """The gradient of every survivor, from that of the logits."""
        self._gradient.fill(0)
        self._small_gradient.fill(0)
        start = self._forward_rows
        self._run(_at(self.table) + start * ROW.itemsize, len(self.table) - start)
        return np.concatenate([self._gradient[: self.streams.weights], self._small_gradient[self.streams.small]])
