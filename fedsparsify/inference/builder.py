"""Writes a program's tables: rows for every worker, constants laid end to end, and offsets into one arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..graph import INPUT
from ..model import Floats
from .arena import LINE_FLOATS, allocate
from .layers import Layer, Recipe, choose, make, pools_too
from .measured import costs
from .operations import Kind, table_of
from .plan import Place, inputs_of, levels_of, places_of, pools_behind
from .shapes import Shape
from .steps import CURVES, Add, Affine, Conv, Curve, Flatten, Pool, Softmax, Step
from .windows import pool_windows

Integers = NDArray[np.int32]
EVEN_SHARE = 16  # channels are divided among workers in multiples of this, as dense kernels write so many
WEIGHT_CYCLES = 2.5  # of a weight besides its products
CROSSING_CYCLES = 36  # of a cache line that another core wrote
VISIT_WEIGHTS = 4  # that take as long as a visit of the sparse kernel does besides
CONVOLUTIONS = (Kind.SPARSE, Kind.SMALL, Kind.LINEAR, Kind.DENSE, Kind.WINOGRAD)


class Pieces:
    """Arrays laid end to end; equal ones are kept once."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []
        self._known: dict[int, list[tuple[int, NDArray[Any]]]] = {}
        self._size = 0

    def add(self, array: Any) -> int:
        """Where the array lies."""
        part = np.ascontiguousarray(array, self._dtype).ravel()
        alike = self._known.setdefault(crc32(part.data), [])
        for place, known in alike:
            if known.size == part.size and known.tobytes() == part.tobytes():
                return place
        alike.append((self._size, part))
        self._parts.append(part)
        self._size += part.size
        return alike[-1][0]

    def joined(self) -> NDArray[Any]:
        """All of them as one array."""
        return np.concatenate([np.zeros(0, self._dtype), *self._parts])


class Builder:
    """One program under construction; see program.build_program."""

    def __init__(
        self,
        steps: Sequence[Step],
        shapes: dict[str, Shape],
        lanes: int,
        single: bool,
        wide: int,
        kernels: str,
        workers: int,
        recipes: dict[str, Recipe],
    ) -> None:
        for step in steps:
            shapes.setdefault(step.name, shapes[step.inputs[0]])
        self.shapes, self.lanes, self.kernels, self.workers = shapes, lanes, kernels, workers
        self.levels = levels_of(steps, shapes, lanes, single)
        self.total = 1 if single else wide * lanes
        self.images = [min(self.total, wide * lanes // prod(level.grid)) for level in self.levels]
        self.places = [places_of(level, shapes, lanes, wide) for level in self.levels]
        self.output = steps[-1].name
        self.pools = {name: pool for level in self.levels for name, pool in pools_behind(level, steps).items()}
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(workers)]
        self.stream, self.params, self.indices = Pieces(np.int32), Pieces(np.float32), Pieces(np.int32)
        self.recipes = recipes
        self.prepared: dict[tuple[str, int], dict[str, Any]] = {}
        self.fresh: dict[int, list[int]] = {}  # values written since the workers last met, and who wrote what
        self.comings = 0
        self.floats = 0
        self.scratch = 0

    def build(self) -> None:
        """Choose kernels, then give every value its place for good, and write the rows."""
        self._allocate({})
        for level, places in zip(self.levels, self.places, strict=True):
            for step in level.steps:
                if isinstance(step, Conv):
                    target = places[step.name]
                    if step.name not in self.recipes:
                        self.recipes[step.name] = self._choose(step, places[step.inputs[0]], target)
                    if step.name in self.pools and not pools_too(self.recipes[step.name], step, target):
                        del self.pools[step.name]
        self._allocate(self.pools)
        for image in range(0, self.total, self.images[-1]):
            self._emit(len(self.levels) - 1, image)
        if self.workers > 1:
            self._gather()

    def _allocate(self, pools: Mapping[str, Pool]) -> None:
        self.floats = LINE_FLOATS  # a guard: shifted reads may begin a vector early
        for level, places in zip(self.levels, self.places, strict=True):
            self.floats = allocate(level, places, self.floats, self.workers == 1, pools)

    def tables(self) -> tuple[NDArray[Any], ...]:
        """The finished rows of each worker, each with working memory of its own behind the values."""
        for worker, rows in enumerate(self.rows):
            for row in rows:
                if row["kind"] in CONVOLUTIONS:
                    row["second"] = self.floats + worker * self.scratch
        return tuple(table_of(rows) for rows in self.rows)

    @property
    def arena_floats(self) -> int:
        """Floats of working memory, with a guard behind."""
        return self.floats + self.workers * self.scratch + self.lanes

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

    def _meet(self, reads: Sequence[Place], bounds: list[int], whole: bool = False) -> None:
        """Let the workers wait for each other where one reads what another may still be writing.

        Each reads the channels that it makes, or the `whole` value.
        """
        for place in reads:
            written = self.fresh.get(id(place))
            own = not whole and written == bounds
            if written and not own and not (alone(written) and alone(bounds)):
                self._gather()

    def _gather(self) -> None:
        self.comings += self.workers
        for rows in self.rows:
            rows.append({"kind": Kind.MEET, "count": self.comings})
        self.fresh.clear()

    def _bounds(self, place: Place) -> list[int]:
        """How a value's channels are divided: as they were written, else evenly."""
        channels = place.shape[0]
        even = [
            min(channels, -(-channels * k // (EVEN_SHARE * self.workers)) * EVEN_SHARE) for k in range(self.workers)
        ]
        return self.fresh.get(id(place)) or [*even, channels]

    def _each(self, kind: Kind, image: int, reads: Sequence[Place], writes: Place, **values: Any) -> None:
        """One row a worker that treats each channel alone."""
        bounds = self._bounds(reads[0] if reads else writes)
        self._meet(reads, bounds)
        strided = [name for name in ("source", "second", "target") if f"{name}_channel" in values]
        for rows, (first, last) in zip(self.rows, pairwise(bounds), strict=True):
            moved = {name: values[name] + first * values[f"{name}_channel"] for name in strided if name in values}
            per_channel = {}
            if "affine" in values:
                constants = [*affine_of(values["affine"], first, last), values["factors"]]
                per_channel["params"] = self.params.add(np.concatenate(constants))
            kept = {name: value for name, value in values.items() if name not in ("affine", "factors")}
            if last > first:
                rows.append({"kind": kind, "image": image, **kept, **moved, **per_channel, "channels": last - first})
        self.fresh[id(writes)] = bounds

    def _pixels(self, place: Place, images: int) -> Integers:
        """Where each image's pixels lie, from the place's origin."""
        _, height, width = place.shape
        y, x, n = np.arange(height)[:, None], np.arange(width), np.arange(images)[:, None, None]
        by, i = np.divmod(y, place.block[0])
        bx, j = np.divmod(x, place.block[1])
        lane = n % self.lanes * prod(place.grid) + by * place.grid[1] + bx
        return np.asarray(i * place.row + (j + n // self.lanes) * self.lanes + lane, np.int32).reshape(images, -1)

    def _samples(self, shape: Shape, images: int) -> Integers:
        size, pixels = prod(shape), shape[1] * shape[2]
        return np.asarray(np.arange(images)[:, None] * size + np.arange(pixels), np.int32)

    def _pairs(self, source: Integers, target: Integers) -> dict[str, Any]:
        table = self.indices.add(np.stack([source.ravel(), target.ravel()], 1))
        return {"table": table, "count": source.size, "per_image": source.shape[1]}

    def _pack(self, place: Place, image: int, images: int) -> None:
        shape = place.shape
        ends = {"target": place.origin, "target_channel": place.channel}
        if shape[1:] == (1, 1):
            start = {"source": image * shape[0], "source_channel": 1, "depth": shape[0]}
            self._each(Kind.TRANSPOSE, image, [], place, count=images, **start, **ends)
            return
        pairs = self._pairs(self._samples(shape, images), self._pixels(place, images))
        start = {"source": image * prod(shape), "source_channel": shape[1] * shape[2]}
        self._each(Kind.PACK, image, [], place, **start, **ends, **pairs)

    def _unpack(self, place: Place, image: int, images: int) -> None:
        shape = place.shape
        pairs = self._pairs(self._pixels(place, images), self._samples(shape, images))
        ends = {"target": image * prod(shape), "target_channel": shape[1] * shape[2]}
        start = {"source": place.origin, "source_channel": place.channel}
        self._each(Kind.UNPACK, image, [place], Place(shape, (1, 1), shape[1:], 1), **start, **ends, **pairs)

    def _move(self, source: Place, target: Place, image: int, here: int, there: int) -> None:
        images = self.images[here]
        pairs = self._pairs(self._pixels(source, images), self._pixels(target, images))
        lane = image % self.images[there] * prod(target.grid)
        ends = {"target": target.origin + lane, "target_channel": target.channel}
        start = {"source": source.origin, "source_channel": source.channel}
        self._each(Kind.MOVE, image, [source], target, **start, **ends, **pairs)

    def _halo(self, place: Place, image: int) -> None:
        if not place.haloed:
            return
        outside = np.zeros(0, np.int32)
        if place.ragged:
            sides = [g * b for g, b in zip(place.grid, place.block, strict=True)]
            shape = (place.shape[0], sides[0], sides[1])
            whole = Place(shape, place.grid, place.block, place.lanes, place.before, place.after)
            cells = self._pixels(whole, place.images).reshape(place.images, *sides)
            inside = np.zeros(sides, np.bool_)
            inside[: place.shape[1], : place.shape[2]] = True
            outside = cells[:, ~inside].ravel()
        (rows, columns), lane = place.grid, np.arange(self.lanes)
        by, bx = lane // columns % rows, lane % columns
        masks = np.concatenate([by > 0, bx > 0, by < rows - 1, bx < columns - 1])
        table = self.indices.add(np.concatenate([[*place.before, *place.after, columns], masks, outside]))
        usual = not outside.size and place.before == place.after == [1, 1]
        fill = {"table": table, "count": outside.size, "low": place.fill, "flag": rows if usual else 0}
        self._each(Kind.HALO, image, [place], place, **fill, **target_of(place))

    def _step(self, step: Step, places: dict[str, Place], image: int) -> None:
        source, target = places[step.inputs[0]], places[step.name]
        ends = {**source_of(source), **target_of(target)}
        match step:
            case Conv():
                pool = self.pools.get(step.name)
                self._convolution(step, source, target, places[pool.name] if pool else None, image)
            case Pool() if self.pools.get(step.inputs[0]) is step:
                return  # the convolution has done it
            case Pool():
                rows, columns, factors = pool_windows(step, source, target)
                constants = {"affine": step.affine, "factors": factors}
                flags = {"flag": int(step.mean), "tile": int(step.plain), "low": step.low, "high": step.high}
                table = self.indices.add(np.concatenate([rows, columns]))
                self._each(Kind.POOL, image, [source], target, table=table, **constants, **flags, **ends)
            case Affine():
                constants = {"affine": step.affine, "factors": np.zeros(0, np.float32)}
                bounds = {"low": step.low, "high": step.high}
                self._each(Kind.AFFINE, image, [source], target, **constants, **bounds, **ends)
            case Add():
                other = places[step.inputs[1]]
                second = {"second": other.origin, "second_channel": other.channel, "second_row": other.row}
                bounds = {"low": step.low, "high": step.high}
                self._each(Kind.ADD, image, [source, other], target, **bounds, **second, **ends)
            case Curve():
                kind = {"flag": CURVES.index(step.kind), "low": step.slope}
                self._each(Kind.CURVE, image, [source], target, **kind, **ends)
            case Softmax():
                self._meet([source], self._first_alone(source), whole=True)
                self.rows[0].append({"kind": Kind.SOFTMAX, "image": image, **ends, "channels": source.shape[0]})
                self.fresh[id(target)] = self._first_alone(source)
            case Flatten():
                self._flatten(source, target, image)

    def _flatten(self, source: Place, target: Place, image: int) -> None:
        """A view where the pixels already lie end to end, else a copy."""
        self._meet([source], self._first_alone(target), whole=True)
        if target.offset != source.offset:
            pixels = (self._pixels(source, 1)[0][:, None] + np.arange(self.lanes)).reshape(1, -1)
            pairs = self._pairs(pixels, np.arange(pixels.size, dtype=np.int32)[None])
            start = {"source": source.origin, "source_channel": source.channel, "channels": source.shape[0]}
            ends = {"target": target.origin, "target_channel": pixels.size}
            self.rows[0].append({"kind": Kind.MOVE, "image": image, **pairs, **start, **ends})
        if target.offset != source.offset or id(source) in self.fresh:
            self.fresh[id(target)] = self._first_alone(target)

    def _convolution(self, step: Conv, source: Place, target: Place, pooled: Place | None, image: int) -> None:
        """A row a worker, each with the weights of its own output channels; made once for all images."""
        recipe, into = self.recipes[step.name], pooled or target
        bounds = self._fair_bounds(step, source, target, recipe)
        self._meet([source], bounds, whole=True)
        for worker, (first, last) in enumerate(pairwise(bounds)):
            if last == first:
                continue
            if (step.name, worker) not in self.prepared:
                layer = make(recipe, step.part(first, last), source, target)
                if pooled:
                    layer = layer.behind(*affine_of(self.pools[step.name].affine, first, last))
                start = {"target": into.origin + first * into.channel, "channels": last - first}
                self.prepared[step.name, worker] = {
                    **self._layer(layer),
                    **source_of(source),
                    **target_of(into),
                    **start,
                    **dict(zip(("rows", "columns"), target.block, strict=True)),
                    "flag": int(pooled is not None),
                }
            self.rows[worker].append(self.prepared[step.name, worker] | {"image": image})
        self.fresh[id(into)] = bounds

    def _choose(self, step: Conv, source: Place, target: Place) -> Recipe:
        mine = -(-target.shape[0] // self.workers)
        ends = {**source_of(source), **target_of(target), "channels": mine}

        def measured(layers: Sequence[Layer]) -> list[float]:
            return costs(layers, ends, self.floats, self.lanes, far=self.total == 1)

        return choose(step, source, target, self.kernels, measured, mine, self.total == 1)

    def _layer(self, layer: Layer) -> dict[str, Any]:
        """The fields of a convolution's row that point at its constants."""
        self.scratch = max(self.scratch, -(-layer.scratch // LINE_FLOATS) * LINE_FLOATS)
        made = {**layer.fields, "kind": layer.kind, "params": self.params.add(layer.params)}
        if layer.stream is not None:
            made["stream"] = self.stream.add(layer.stream)
        if layer.table is not None:
            made["table"] = self.indices.add(layer.table)
        return made

    def _first_alone(self, place: Place) -> list[int]:
        """Bounds that leave all channels to the first worker."""
        return [0, *[place.shape[0]] * self.workers]

    def _fair_bounds(self, step: Conv, source: Place, target: Place, recipe: Recipe) -> list[int]:
        """Divide the output channels so that each worker gets about as much to do; in groups, all go to one.

        So they do where a worker would wait longer for what others wrote than it takes to make the rest itself.
        """
        channels = target.shape[0]
        if self.workers == 1 or step.groups > 1:
            return self._first_alone(target)
        if recipe.kind not in (Kind.SPARSE, Kind.SMALL, Kind.LINEAR):
            load, share = np.arange(1, channels + 1), EVEN_SHARE
        else:
            load, share = np.cumsum(step.weight.per_output() + VISIT_WEIGHTS * recipe.blocks), 1
            lines = min(source.size // source.lanes, step.weight.places.size)
            if load[-1] * (prod(target.block) + WEIGHT_CYCLES) < CROSSING_CYCLES * lines:
                return self._first_alone(target)
        cuts = [int(np.searchsorted(load, load[-1] * k / self.workers)) for k in range(1, self.workers)]
        return [0, *(min(channels, round(cut / share) * share) for cut in cuts), channels]


def alone(bounds: list[int]) -> bool:
    """Whether all channels are the first worker's."""
    return bounds[1] == bounds[-1]


def affine_of(affine: tuple[Floats, Floats] | None, first: int, last: int) -> list[Floats]:
    """Scale and shift of some channels."""
    return [part[first:last] for part in affine or (np.ones(last, np.float32), np.zeros(last, np.float32))]


def target_of(place: Place) -> dict[str, Any]:
    """The fields of a row that writes a value."""
    rows, columns = place.block
    ends = {"target": place.origin, "target_channel": place.channel, "target_row": place.row}
    return {**ends, "rows": rows, "columns": columns}


def source_of(place: Place) -> dict[str, Any]:
    """The fields of a row that reads a value."""
    ends = {"source": place.origin, "source_channel": place.channel, "source_row": place.row}
    return {**ends, "depth": place.shape[0]}


def weight_vectors(steps: Sequence[Step], shapes: dict[str, Shape], lanes: int) -> float:
    """About how many vector multiplications one image takes."""
    convolutions = [step for step in steps if isinstance(step, Conv)]
    return sum(s.weight.places.size * prod(shapes[s.name][1:]) for s in convolutions) / lanes
