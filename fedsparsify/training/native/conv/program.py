"""The rows of one client's training step: forward, and backward.

In: the planes of a network, its streams, and the largest batch. Out: a `Program` that runs a batch through the kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ....graph import INPUT
from ....model import Layout
from ....native.lines import address_of, zeros
from ...graph_layers import Add, Convolution, Dropout, Flatten, Layer, Norm, Pool, Relu, squares_of
from .memory import Array, Memory, Place, at, put_plane, row_of
from .planes import Planes, output_shape
from .rows import ADD, CODES, MASKED, RELU, RELU_POOL, RELU_STREAMED, ROW, STORE, TILE_COLUMNS, tile_rows
from .streams import Stream, Streams

Run = Callable[..., object]
Draw = tuple[int, int, float, float]  # of a dropout: two parts of its key, its threshold and its factor


class Program:
    """Memory and rows for one model in training, on one thread."""

    def __init__(self, planes: Planes, layout: Layout, batch: int, run: Run) -> None:
        self.planes, self._plan, self._run = planes, planes.plan, run
        self._memory = Memory(planes, layout, batch)
        self.statistics = self._memory.statistics
        self.logits = zeros(batch * self._plan.shapes[self._plan.output][0])
        self._readers = Counter([self._plan.output, *(n for layer in self._plan.layers for n in layer.inputs)])
        self._makers = {layer.output: layer for layer in self._plan.layers}
        self.table = np.zeros(0, ROW)

    @property
    def bytes(self) -> int:
        """Memory of values, gradients and what belongs to them."""
        return self._memory.bytes

    def bind(self, streams: Streams) -> None:
        """Take over a mask."""
        self.streams = streams
        self._weights = zeros(max(1, streams.weights))
        self._both_gradients = zeros(streams.weights + self._memory.small.size)
        self._gradient, self._small_gradient = np.split(self._both_gradients, [streams.weights])
        self._bound: list[Array] = []  # as long as this mask
        self._memory.small.fill(0)
        rows: list[Array] = []
        self._write_images(rows)
        for layer in self._plan.layers:
            self._forward(rows, layer)
        output = self._memory.values[self._plan.output]
        rows.append(row_of("logits", x=output, y=at(self.logits), channels=output[0].shape[0]))
        self._forward_rows = len(rows)
        self._write_backward(rows)
        self.table = np.concatenate(rows)
        self._at_table, self._batch = at(self.table), 0
        drawing = np.flatnonzero(self.table["op"] == CODES["draw"])
        dropouts = (layer.output for layer in self._plan.layers if isinstance(layer, Dropout))
        self._draws = [(name, self.table[k : k + 1]) for name, k in zip(dropouts, drawing, strict=True)]
        self._given, self._given_back = self.table["x"][:1], self.table["x"][self._forward_rows :][:1]
        self._all_small = streams.small.size == self._memory.small.size

    def _write_images(self, rows: list[Array]) -> None:
        images = self._memory.values[INPUT]
        shape = images[0].shape
        rows.append(row_of("images", shape, y=images, per_image=int(np.prod(shape))))

    # Forward.

    def _forward(self, rows: list[Array], layer: Layer) -> None:
        source, target = self._memory.values[layer.inputs[0]], self._memory.values[layer.output]
        match layer:
            case Convolution():
                rows.append(self._convolution(layer, source, target))
            case Norm():
                added = self._memory.values[layer.inputs[1]] if len(layer.inputs) > 1 else 0
                rows.append(self._norm("norm", layer, x=source, y=target, z=added))
            case Pool():
                rows.append(self._pool("mean_pool" if layer.mean else "max_pool", layer, source, target))
            case Add():
                second = self._memory.values[layer.inputs[1]]
                rows.append(row_of("add", target[0].shape, x=source, y=target, z=second, relu=layer.relu))
            case Relu():
                rows.append(row_of("copy", target[0].shape, x=source, y=target, relu=1))
            case Dropout():
                factors = self._memory.factors(layer)
                rows.append(row_of("draw", target[0].shape, y=factors, per_image=int(np.prod(target[0].shape))))
                rows.append(row_of("multiply", target[0].shape, x=source, y=target, z=factors))
            case Flatten():
                rows.append(self._flat("copy", source, target, "y"))

    def _convolution(self, layer: Convolution, source: Place, target: Place) -> Array:
        streams, shape = self.streams.layers[layer.output], output_shape(layer, self._plan.shapes)
        large = streams.forward.blocks == 1 and self._memory.is_large(target)
        mode = RELU_POOL if layer.pooled else (RELU_STREAMED if large else RELU) if layer.relu else STORE
        bias = at(self._memory.small) + self._memory.small_at[layer.bias] if layer.bias else 0
        row = row_of("convolution", shape, x=source, y=target, mode=mode, bias=bias, sums=self._memory.sums)
        self._walk(row, streams.forward, at(self._weights) + 4 * streams.start)
        self._strided_input(row, layer)
        if layer.relu:
            self._memory.put_bits(row, layer.output, target[0].shape, 4 if layer.pooled else 1)
        self._prefetched(row, layer.kernel[2:], layer.padding)
        return self._flattened(row)

    def _walk(self, row: Array, stream: Stream, weights: int) -> None:
        row["blocks"], row["block"], row["inputs"] = stream.blocks, stream.block, stream.inputs
        row["by_four"] = stream.by_four
        row["counts"], row["offsets"], row["weights"] = at(stream.counts), at(stream.offsets), weights

    def _prefetched(self, row: Array, kernel: tuple[int, ...], before: tuple[int, ...]) -> None:
        """Say what the next tile reads that a tile does not; windows begin `before` pixels above and on the left."""
        tall = tile_rows(self._memory.lanes)
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
        shape = self._memory.values[layer.inputs[0]][0].shape
        channels = shape[0]
        mean = self._memory.moments(layer.output, channels)
        running = [
            at(self.statistics) + self._memory.statistics_at[name] for name in (layer.running_mean, layer.running_var)
        ]
        row = row_of(op, shape, **planes, relu=layer.relu, sums=self._memory.sums)
        if layer.pooled:
            self._memory.put_bits(row, layer.output, self._plan.shapes[layer.output], 4, "pool_bits")
        row["mean"], row["deviation"] = mean, mean + 4 * channels
        row["running_mean"], row["running_var"] = running
        row["scale"], row["shift"] = (
            at(self._memory.small) + self._memory.small_at[name] if name else self._memory.constant(usual, channels)
            for name, usual in ((layer.weight, 1.0), (layer.bias, 0.0))
        )
        row["eps"], row["momentum"] = layer.eps, layer.momentum
        return row

    def _pool(self, op: str, layer: Pool, x: Place, y: Place) -> Array:
        bounds = np.array([b[k] for axis in (layer.rows, layer.columns) for k in (0, 1) for b in axis], np.int64)
        factors = np.array(layer.factors, np.float32)
        self._bound += [bounds, factors]
        row = row_of(op, y[0].shape, x=x, y=y, windows=at(bounds), scale=at(factors) if layer.mean else 0)
        row["window_rows"], row["window_columns"] = layer.window
        if not layer.mean:
            self._memory.put_bits(row, layer.output, y[0].shape, layer.window[0] * layer.window[1])
        return row

    def _flat(self, op: str, x: Place, y: Place, flat: str, accumulate: bool = False) -> Array:
        """A copy between an image and the channels of one pixel; `flat` says which of both is flat."""
        image = (x if flat == "y" else y)[0].shape
        row, vector = row_of(op, image, x=x, y=y, accumulate=accumulate), self.planes.vector
        row[f"{flat}_channel"], row[f"{flat}_row"] = image[1] * image[2] * vector, image[2] * vector
        return row

    # Backward.

    def _write_backward(self, rows: list[Array]) -> None:
        self._gradients: dict[str, Place] = {}  # those that a row has written; summands share that of their sum
        self._idle = list(self._memory.spare)  # planes that nothing reads any more
        self._fused: set[str] = set()  # outputs whose gradient is used up by the row that computes it
        output, _ = self._target(self._plan.output)
        assert output is not None
        rows.append(row_of("logits_back", y=output, channels=output[0].shape[0]))
        for layer in reversed(self._plan.layers):
            if layer.output in self._gradients:
                self._idle.append(self._memory.values[layer.output])  # all that read it later have been here
                self._backward(rows, layer)
                given = self._gradients.pop(layer.output)
                if given not in self._gradients.values():
                    self._idle.append(given)

    def _target(self, name: str) -> tuple[Place | None, bool]:
        """Where a value's gradient goes (None: nobody needs it), and whether something is there already."""
        if name not in self.planes.gradients:
            return None, False
        there = name in self._gradients
        if not there:
            self._gradients[name] = self._memory.gradient(self.planes.gradients[name], self._idle)
        return self._gradients[name], there

    def _backward(self, rows: list[Array], layer: Layer) -> None:
        given = self._gradients[layer.output]
        if isinstance(layer, Convolution):
            self._convolution_back(rows, layer, given)
            return
        if isinstance(layer, Norm):
            self._norm_back(rows, layer, given)
            return
        if isinstance(layer, Add):
            self._add_back(rows, layer, given)
            return
        for name in layer.inputs:
            target, there = self._target(name)
            if target is None:
                continue
            shape = target[0].shape
            match layer:
                case Pool():
                    self._pool_back(rows, layer, target, given, there)
                case Relu():
                    made = self._memory.values[layer.output]
                    rows.append(row_of("relu_back", shape, x=given, y=target, z=made, accumulate=there))
                case Dropout():
                    factors = self._memory.factors(layer)
                    rows.append(row_of("multiply", shape, x=given, y=target, z=factors, accumulate=there))
                case Flatten():
                    rows.append(self._flat("copy", given, target, "x", there))

    def _add_back(self, rows: list[Array], layer: Add, given: Place) -> None:
        """Both summands have the gradient of the sum; that of the second stays where it is."""
        self._unmask(rows, layer, given)
        target, there = self._target(layer.inputs[0])
        if target is not None:
            rows.append(row_of("copy", target[0].shape, x=given, y=target, accumulate=there))
        self._pass_on(rows, layer.inputs[1], given)

    def _unmask(self, rows: list[Array], layer: Add | Norm, given: Place) -> None:
        """Undo the ReLU of a sum, in the gradient's own place."""
        if layer.relu:
            made = self._memory.values[layer.output]
            rows.append(row_of("relu_back", given[0].shape, x=given, y=given, z=made))

    def _pass_on(self, rows: list[Array], name: str, given: Place) -> None:
        """Let a value have a gradient that nothing else needs: without a copy, where that is possible."""
        if name not in self._gradients and self.planes.gradients.get(name) == given[0]:
            self._gradients[name] = given
            return
        target, there = self._target(name)
        if target is not None:
            rows.append(row_of("copy", target[0].shape, x=given, y=target, accumulate=there))

    def _norm_back(self, rows: list[Array], layer: Norm, given: Place) -> None:
        added = len(layer.inputs) > 1
        if added:
            self._unmask(rows, layer, given)
        target, there = self._target(layer.inputs[0])
        gradients = [
            at(self._small_gradient) + self._memory.small_at[name] if name else 0 for name in (layer.weight, layer.bias)
        ]
        row = self._norm("norm_back", layer, x=target or 0, y=given, z=self._memory.values[layer.inputs[0]])
        row["accumulate"], row["gradient"], row["bias_gradient"] = there, *gradients
        row["relu"] = layer.relu and not added
        rows.append(row)
        if added:
            self._pass_on(rows, layer.inputs[1], given)

    def _pool_back(self, rows: list[Array], layer: Pool, target: Place, given: Place, there: bool) -> None:
        stored = not there and not layer.mean and squares_of(layer, target[0].shape)  # every pixel is written once
        if not there and not stored:
            rows.append(row_of("clear", target[0].shape, y=target))
        row = self._pool("mean_pool_back" if layer.mean else "max_pool_back", layer, target, given)
        row["accumulate"] = not stored
        rows.append(row)

    def _convolution_back(self, rows: list[Array], layer: Convolution, given: Place) -> None:
        if layer.output in self._fused:
            return
        shape = output_shape(layer, self._plan.shapes)
        if layer.relu and not layer.pooled and not self._masked_by_reader(layer):
            row = row_of("mask", shape, y=given)
            self._memory.put_bits(row, layer.output, shape, 1)
            rows.append(row)
        rows.append(self._weight_gradient(layer, y=given))
        target, there = self._target(layer.inputs[0])
        if target is not None:
            self._input_gradient(rows, layer, given, target, there)

    def _weight_gradient(self, layer: Convolution, **fields: Any) -> Array:
        streams, shape = self.streams.layers[layer.output], output_shape(layer, self._plan.shapes)
        row = row_of("weight_gradient", shape, x=self._memory.values[layer.inputs[0]], **fields)
        if layer.pooled:
            self._memory.put_bits(row, layer.output, self._plan.shapes[layer.output], 4, "pool_bits")
        self._walk(row, streams.forward, 0)
        self._strided_input(row, layer)
        row["gradient"] = at(self._gradient) + 4 * streams.start
        row["bias_gradient"] = at(self._small_gradient) + self._memory.small_at[layer.bias] if layer.bias else 0
        self._prefetched(row, layer.kernel[2:], layer.padding)
        return self._flattened(row)

    def _unpool(self, row: Array, layer: Convolution, given: Place) -> None:
        """Let a row compute what it reads tile by tile, from the gradient after a pool of 2 × 2."""
        tile = self.planes.unpooled[layer.output]
        row["x"], row["x_group"], row["x_channel"] = self._memory.tile + tile.corner, 0, tile.channel
        row["x_row"], row["x_column"], row["spread"] = tile.row, tile.vector, layer.kernel[2]
        put_plane(row, "z", *given)
        self._memory.put_bits(row, layer.output, given[0].shape, 4, "pool_bits")

    def _fuse(self, row: Array, maker: Convolution) -> None:
        """Let the row that computes the gradient of a layer's outputs go on to that of its weights, tile by tile.

        Nothing else needs the outputs' gradient then, and it is never stored as a plane.
        """
        vector = self.planes.vector
        row["y"], row["y_group"], row["y_channel"] = self._memory.sums, 0, TILE_COLUMNS * TILE_COLUMNS * vector
        row["y_row"], row["y_column"], row["local"] = TILE_COLUMNS * vector, vector, 1
        given = {name: row[name] for name in ("y", "y_group", "y_channel", "y_row", "y_column", "local")}
        after = self._weight_gradient(maker, **given)
        self._bound.append(after)
        row["fused"] = at(after)
        self._fused.add(maker.output)

    def _fusible(self, maker: Convolution) -> bool:
        """Whether a layer's weights' gradient may be taken where that of its outputs is made: it is all they serve."""
        first = maker.inputs[0] not in self.planes.gradients and maker.stride == (1, 1)
        pixels = self._plan.shapes[maker.output][1:]
        return first and pixels != (1, 1) and self.streams.layers[maker.output].forward.blocks == 1

    def _masked_by_reader(self, layer: Convolution) -> bool:
        """Whether a convolution's ReLU is undone by the convolution that reads its output."""
        if not layer.relu or layer.pooled or self._readers[layer.output] != 1:
            return False
        readers = [other for other in self._plan.layers if layer.output in other.inputs]
        return bool(readers) and isinstance(readers[0], Convolution) and readers[0].stride == (1, 1)

    def _input_gradient(self, rows: list[Array], layer: Convolution, given: Place, target: Place, there: bool) -> None:
        streams = self.streams.layers[layer.output]
        maker = self._makers.get(layer.inputs[0])
        masked = isinstance(maker, Convolution) and self._masked_by_reader(maker)
        plane, address = target
        if not there and any(part.stream.order.size == 0 for part in streams.backward):
            rows.append(row_of("clear", plane.shape, y=target))
            there = True
        for part in streams.backward:
            if there and part.stream.order.size == 0:  # pixels that a strided window never meets
                continue
            transposed = zeros(max(1, part.stream.order.size))
            self._bound.append(transposed)
            row = row_of("permute", x=at(self._weights) + 4 * streams.start, y=at(transposed))
            row["order"], row["survivors"] = at(part.stream.order), part.stream.order.size
            rows.append(row)
            corner = address + part.first_row * plane.row + part.first_column * plane.vector
            shape = plane.shape[0], part.rows, part.columns
            row = row_of("convolution", shape, x=given, y=(plane, corner), near=1, sums=self._memory.sums)
            row["mode"] = MASKED if masked else ADD if there else STORE
            row["y_row"] *= layer.stride[0]
            row["y_column"] *= layer.stride[1]
            self._walk(row, part.stream, at(transposed))
            if layer.pooled:
                self._unpool(row, layer, given)
            if isinstance(maker, Convolution) and masked:
                self._memory.put_bits(row, layer.inputs[0], plane.shape, 1)
                if self._fusible(maker):
                    self._fuse(row, maker)
            if layer.stride == (1, 1) and not layer.pooled:
                before = tuple(k - 1 - pad for k, pad in zip(layer.kernel[2:], layer.padding, strict=True))
                self._prefetched(row, layer.kernel[2:], before)
            rows.append(self._flattened(row))

    # A step.

    def _take(self, batch: int) -> None:
        """Set the batch size of all rows, where it is another one."""
        if batch == self._batch:
            return
        self._batch = batch
        groups, flat = -(-batch // self._memory.lanes), self.table["flat"] == 1
        self.table["batch"] = batch
        self.table["groups"] = np.where(flat, 1, groups)
        self.table["rows"][flat] = groups

    def forward(self, x: Array, survivors: Array, draws: dict[str, Draw], fixed_norms: bool) -> None:
        """Logits of a batch (batch, …), with the survivors' weights; `draws` has numbers for each dropout."""
        split = self.streams.weights
        self._weights[:split] = survivors[:split]
        self._memory.small[slice(None) if self._all_small else self.streams.small] = survivors[split:]
        self._take(len(x))
        self.table["fixed"] = fixed_norms
        self._given[0] = address_of(x)
        for name, row in self._draws:
            row["inner"], row["outer"], row["threshold"], row["factor"] = draws[name]
        self._run(self._at_table, self._forward_rows)

    def backward(self, logits_gradient: Array) -> Array:
        """The gradient of every survivor, from that of the logits (batch, classes)."""
        self._both_gradients.fill(0)
        self._given_back[0] = address_of(logits_gradient)
        start = self._forward_rows
        self._run(self._at_table + start * ROW.itemsize, len(self.table) - start)
        if self._all_small:
            return self._both_gradients.copy()
        return np.concatenate([self._gradient, self._small_gradient[self.streams.small]])
