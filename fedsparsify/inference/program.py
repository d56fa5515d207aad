"""From steps to a table of operations over one arena: what runs for a block of images, with all it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import INPUT
from ..model import Floats
from . import streams
from .kernels import execute
from .layers import Layer, ready
from .operations import OPERATION, Kind
from .plan import COMFORTABLE, Place, inputs_of, levels_of, places_of, separate_fills
from .shapes import Shape
from .steps import CURVES, Add, Affine, Conv, Curve, Flatten, Pool, Softmax, Step
from .windows import pool_windows

Integers = NDArray[np.int32]
ALIGNMENT = 64
TRIALS = 7
FAR_FLOATS = 1 << 21  # more than the second-level cache holds
_NOTHING = np.zeros(1, np.int32)


@dataclass(frozen=True, eq=False)
class Program:
    """A table of operations and the constants they read; immutable, so that threads may share it."""

    table: NDArray[Any]
    stream: Integers
    params: Floats
    indices: Integers
    lanes: int
    images: int  # in a block
    arena_floats: int
    outputs: Shape

    def arena(self) -> Floats:
        """Working memory for one thread, zeroed and aligned."""
        return aligned(self.arena_floats)

    @property
    def bytes(self) -> int:
        """Memory of the prepared weights and tables."""
        return self.table.nbytes + self.stream.nbytes + self.params.nbytes + self.indices.nbytes


def aligned(floats: int) -> Floats:
    """Zeros that begin at a cache line."""
    raw = np.zeros(4 * floats + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + 4 * floats].view(np.float32)


def build_program(
    steps: Sequence[Step],
    shapes: dict[str, Shape],
    lanes: int,
    single: bool = False,
    wide: int = 1,
    kernels: str = "auto",
) -> Program:
    """The program for one image (`single`), for as many as there are lanes, or for `wide` times that many flat ones."""
    return _Builder(separate_fills(steps), shapes, lanes, single, wide, kernels).build()


class _Pieces:
    """Arrays laid end to end; equal ones are kept once."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []
        self._known: dict[bytes, int] = {}
        self._size = 0

    def add(self, array: Any) -> int:
        part = np.ascontiguousarray(array, self._dtype).ravel()
        key = part.tobytes()
        if key not in self._known:
            self._known[key] = self._size
            self._parts.append(part)
            self._size += part.size
        return self._known[key]

    def joined(self) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, self._dtype), *self._parts])


class _Builder:
    def __init__(
        self, steps: Sequence[Step], shapes: dict[str, Shape], lanes: int, single: bool, wide: int, kernels: str
    ) -> None:
        for step in steps:
            shapes.setdefault(step.name, shapes[step.inputs[0]])
        self.shapes, self.lanes, self.kernels = shapes, lanes, kernels
        self.levels = levels_of(steps, shapes, lanes, 1 if single else COMFORTABLE)
        self.total = 1 if single else wide * lanes
        self.images = [min(self.total, wide * lanes // prod(level.grid)) for level in self.levels]
        self.places = [places_of(level, shapes, lanes, wide) for level in self.levels]
        self.output = steps[-1].name
        self.rows: list[dict[str, Any]] = []
        self.stream, self.params, self.indices = _Pieces(np.int32), _Pieces(np.float32), _Pieces(np.int32)
        self.prepared: dict[str, dict[str, Any]] = {}
        self.floats = lanes  # a guard: shifted reads may begin a vector early

    def build(self) -> Program:
        for level, places in zip(self.levels, self.places, strict=True):
            flattened = {step.name: step.inputs[0] for step in level.steps if isinstance(step, Flatten)}
            for name, place in places.items():
                source = places.get(flattened.get(name, ""))
                if source is not None and source.channel == prod(source.block) * self.lanes:
                    place.offset = source.offset
                else:
                    place.offset = self._room(place.size)
        self.scratch = self.floats
        for image in range(0, self.total, self.images[-1]):
            self._emit(len(self.levels) - 1, image)
        table = _table(self.rows)
        arrays = self.stream.joined(), self.params.joined(), self.indices.joined()
        return Program(table, *arrays, self.lanes, self.total, self.floats + self.lanes, self.shapes[self.output])

    def _room(self, floats: int) -> int:
        start = self.floats
        self.floats += -(-floats // (ALIGNMENT // 4)) * (ALIGNMENT // 4)
        return start

    def _emit(self, index: int, image: int) -> None:
        """All rows of a level's block that begins at an image, after those of the finer levels that feed it."""
        level, places = self.levels[index], self.places[index]
        if index:
            for start in range(0, self.images[index], self.images[index - 1]):
                self._emit(index - 1, image + start)
        if any(INPUT in step.inputs for step in level.steps):
            self._pack(places[INPUT], image, self.images[index])
            self._halo(places[INPUT], image)
        for name in inputs_of(level):
            self._halo(places[name], image)
        for step in level.steps:
            self._step(step, places, image)
            self._halo(places[step.name], image)
            for later in range(index + 1, len(self.levels)):
                if step.name in inputs_of(self.levels[later]):
                    self._move(places[step.name], self.places[later][step.name], image, index, later)
            if step.name == self.output:
                self._unpack(places[step.name], image, self.images[index])

    def _row(self, kind: Kind, image: int, **values: Any) -> None:
        self.rows.append({"kind": kind, "image": image, **values})

    def _pixels(self, place: Place, images: int) -> Integers:
        """Where each image's pixels lie, from the place's origin."""
        _, height, width = place.shape
        y, x, n = np.arange(height)[:, None], np.arange(width), np.arange(images)[:, None, None]
        by, i = np.divmod(y, place.block[0])
        bx, j = np.divmod(x, place.block[1])
        lane = n % self.lanes * prod(place.grid) + by * place.grid[1] + bx
        return np.asarray(i * place.row + (j + n // self.lanes) * self.lanes + lane, np.int32).reshape(images, -1)

    def _copy(self, kind: Kind, image: int, pairs: tuple[Integers, Integers], **values: Any) -> None:
        table = self.indices.add(np.stack([part.ravel() for part in pairs], 1))
        per_image = pairs[0].shape[1]
        self._row(kind, image, table=table, count=pairs[0].size, per_image=per_image, **values)

    def _samples(self, shape: Shape, images: int) -> Integers:
        size, pixels = prod(shape), shape[1] * shape[2]
        return np.asarray(np.arange(images)[:, None] * size + np.arange(pixels), np.int32)

    def _pack(self, place: Place, image: int, images: int) -> None:
        shape = place.shape
        if shape[1:] == (1, 1):
            ends = {"target": place.origin, "target_channel": place.channel, "channels": shape[0]}
            self._row(Kind.TRANSPOSE, image, count=images, **ends)
            return
        pairs = self._samples(shape, images), self._pixels(place, images)
        ends = {"second": prod(shape), "source_channel": shape[1] * shape[2]}
        ends |= {"target": place.origin, "target_channel": place.channel, "channels": shape[0]}
        self._copy(Kind.PACK, image, pairs, **ends)

    def _unpack(self, place: Place, image: int, images: int) -> None:
        shape = place.shape
        pairs = self._pixels(place, images), self._samples(shape, images)
        ends = {"second": prod(shape), "target_channel": shape[1] * shape[2]}
        ends |= {"source": place.origin, "source_channel": place.channel, "channels": shape[0]}
        self._copy(Kind.UNPACK, image, pairs, **ends)

    def _move(self, source: Place, target: Place, image: int, here: int, there: int) -> None:
        images = self.images[here]
        pairs = self._pixels(source, images), self._pixels(target, images)
        lane = image % self.images[there] * prod(target.grid)
        ends = {"source": source.origin, "source_channel": source.channel, "channels": source.shape[0]}
        ends |= {"target": target.origin + lane, "target_channel": target.channel}
        self._copy(Kind.MOVE, image, pairs, **ends)

    def _halo(self, place: Place, image: int) -> None:
        if not place.haloed:
            return
        outside = np.zeros(0, np.int32)
        if place.ragged:
            shape = (place.shape[0], *(g * b for g, b in zip(place.grid, place.block, strict=True)))
            whole = Place(
                (shape[0], shape[1], shape[2]), place.grid, place.block, place.lanes, place.before, place.after
            )
            cells = self._pixels(whole, place.images).reshape(place.images, *shape[1:])
            inside = np.zeros(shape[1:], np.bool_)
            inside[: place.shape[1], : place.shape[2]] = True
            outside = cells[:, ~inside].ravel()
        (rows, columns), lane = place.grid, np.arange(self.lanes)
        by, bx = lane // columns % rows, lane % columns
        masks = np.concatenate([by > 0, bx > 0, by < rows - 1, bx < columns - 1])
        table = self.indices.add(np.concatenate([[*place.before, *place.after, columns], masks, outside]))
        values = {"table": table, "count": outside.size, "low": place.fill, **self._target(place)}
        self._row(Kind.HALO, image, **values)

    def _target(self, place: Place) -> dict[str, Any]:
        rows, columns = place.block
        ends = {"target": place.origin, "target_channel": place.channel, "target_row": place.row}
        return {**ends, "rows": rows, "columns": columns, "channels": place.shape[0]}

    def _source(self, place: Place) -> dict[str, Any]:
        ends = {"source": place.origin, "source_channel": place.channel, "source_row": place.row}
        return {**ends, "depth": place.shape[0]}

    def _step(self, step: Step, places: dict[str, Place], image: int) -> None:
        source, target = places[step.inputs[0]], places[step.name]
        ends = {**self._source(source), **self._target(target)}
        match step:
            case Conv():
                if step.name not in self.prepared:
                    self.prepared[step.name] = self._convolution(step, source, target)
                self.rows.append(self.prepared[step.name] | {"image": image})
            case Pool():
                rows, columns, factors = pool_windows(step, source, target)
                values = np.concatenate([streams.affine_params(step.affine, target.shape[0]), factors])
                table, params = self.indices.add(np.concatenate([rows, columns])), self.params.add(values)
                flags = {"flag": int(step.mean), "low": step.low, "high": step.high}
                self._row(Kind.POOL, image, table=table, params=params, **flags, **ends)
            case Affine():
                params = self.params.add(streams.affine_params(step.affine, target.shape[0]))
                self._row(Kind.AFFINE, image, params=params, low=step.low, high=step.high, **ends)
            case Add():
                other = places[step.inputs[1]]
                second = {"second": other.origin, "second_channel": other.channel, "second_row": other.row}
                self._row(Kind.ADD, image, low=step.low, high=step.high, **second, **ends)
            case Curve():
                self._row(Kind.CURVE, image, flag=CURVES.index(step.kind), low=step.slope, **ends)
            case Softmax():
                self._row(Kind.SOFTMAX, image, **ends)
            case Flatten() if target.offset != source.offset:
                pixels = (self._pixels(source, 1)[0][:, None] + np.arange(self.lanes)).reshape(1, -1)
                flat = np.arange(pixels.size, dtype=np.int32)[None]
                ends = {"source": source.origin, "source_channel": source.channel, "channels": source.shape[0]}
                ends |= {"target": target.origin, "target_channel": pixels.size}
                self._copy(Kind.MOVE, image, (pixels, flat), **ends)

    def _convolution(self, step: Conv, source: Place, target: Place) -> dict[str, Any]:
        """The row of a convolution; made once, however many images it serves."""
        ends = {**self._source(source), **self._target(target)}
        layer = ready(step, source, target, self.kernels, lambda layers: self._costs(layers, ends))
        self.floats = max(self.floats, self.scratch + layer.scratch)
        made = {**ends, **layer.fields, "kind": layer.kind, "second": self.scratch}
        made["params"] = self.params.add(layer.params)
        if layer.stream is not None:
            made["stream"] = self.stream.add(layer.stream)
        if layer.table is not None:
            made["table"] = self.indices.add(layer.table)
        return made

    def _costs(self, layers: Sequence[Layer], ends: dict[str, Any]) -> list[float]:
        """Seconds that each of some layers takes on this machine, on zeros; they take turns.

        A single image finds the weights in no near cache, so that they are driven out first.
        """
        trial = aligned(self.scratch + max(layer.scratch for layer in layers) + self.lanes)
        trial.fill(0)  # unwritten pages would all be one page, which caches take badly
        far = np.zeros(FAR_FLOATS if self.total == 1 else 1, np.float32)
        times: list[list[float]] = [[] for _ in layers]
        for _ in range(TRIALS):
            for layer, seconds in zip(layers, times, strict=True):
                table = _table([{**ends, **layer.fields, "kind": layer.kind, "second": self.scratch}])
                stream, indices = (_NOTHING if part is None else part for part in (layer.stream, layer.table))
                far += 1
                started = perf_counter()
                execute((0,) * self.lanes, table, trial, stream, layer.params, indices, trial, trial, 1)
                seconds.append(perf_counter() - started)
        return [min(seconds) for seconds in times]


def _table(rows: list[dict[str, Any]]) -> NDArray[Any]:
    table = np.zeros(len(rows), OPERATION)
    for row, values in zip(table, rows, strict=True):
        for field, value in values.items():
            row[field] = value
    return table
