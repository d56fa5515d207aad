"""Writes a program's tables: rows for every worker, constants laid end to end, and offsets into one arena."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import INPUT
from ...ops import ACTIVATIONS
from ..fields import affine_of, source_of, target_of
from ..frontend.fusion import Shape
from ..frontend.steps import Activation, Add, Affine, Conv, Flatten, Pool, Softmax, Step
from ..layout.arena import LINE_FLOATS, allocate
from ..layout.bands import in_bands, seams
from ..layout.memory import Memory
from ..layout.storage import Level, Place, check_reach, inputs_of, levels_of, named, places_of, pools_behind
from .autotune import costs
from .constants import Pieces, int32, runs_of
from .layers import Layer, Recipe, choose, make, making_bytes, pools_too
from .pool_windows import pool_windows
from .rows import Kind, table_of
from .workers import Workers

Integers = NDArray[np.int32]
NUMBERS = {operation.name: number for number, operation in enumerate(ACTIVATIONS)}
ROW_BYTES = 2048  # of a row while it is a dictionary
PIXEL_BYTES = 80  # that a table of pixels takes per pixel while it is made
FAR_ARENA = 1 << 19  # of an arena whose values do not stay in the second-level cache
CONVOLUTIONS = (Kind.SPARSE, Kind.SMALL, Kind.LINEAR, Kind.LONE, Kind.DENSE, Kind.WINOGRAD)


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
        memory: Memory,
    ) -> None:
        for step in steps:
            shapes.setdefault(step.name, shapes[step.inputs[0]])
        self.memory = memory
        self.shapes, self.lanes, self.kernels, self.workers = shapes, lanes, kernels, Workers(workers)
        self.total, self.wide, self.steps = 1 if single else wide * lanes, wide, steps
        self.output = steps[-1].name
        self.stream, self.params, self.indices = Pieces(np.int32), Pieces(np.float32), Pieces(np.int32)
        self.recipes = recipes
        self.prepared: dict[tuple[str, int], dict[str, Any]] = {}
        self.floats = 0
        self.scratch = 0
        self.pools: dict[str, Pool] = {}
        self.input, self.logits = (
            Place(shapes[name], (1, 1), shapes[name][1:], 1) for name in (INPUT, self.output)
        )  # the caller's, which lie as they come

    def build(self) -> None:
        """Choose kernels, then give every value its place for good, and write the rows."""
        self._lay(levels_of(self.steps, self.shapes, self.lanes, self.total == 1))
        for step, source, target in self._convolutions():
            if step.name not in self.recipes:
                self.recipes[step.name] = self._choose(step, source, target)
        if self.workers.count > 1 and self.total == 1:
            self._lay(in_bands(self.levels, self.shapes, self.lanes, self.workers.count, self.recipes))
        self.pools = {name: pool for level in self.levels for name, pool in pools_behind(level, self.steps).items()}
        for step, _, target in self._convolutions():
            if step.name in self.pools and not pools_too(self.recipes[step.name], step, target):
                del self.pools[step.name]
        self._allocate()
        self.read = [inputs_of(level) for level in self.levels]
        wanted = [set(names) for names in self.read]
        self.later = [
            {name: [k for k in range(index + 1, len(self.levels)) if name in wanted[k]] for name in level.blocks}
            for index, level in enumerate(self.levels)
        ]
        for image in range(0, self.total, self.images[-1]):
            self._emit(len(self.levels) - 1, image)
        if self.workers.count > 1:
            self.workers.gather()
        self._expect(0, "the prepared network")

    def _lay(self, levels: list[Level]) -> None:
        """Give every value of some levels a place."""
        self.levels = levels
        self.images = [min(self.total, self.wide * self.lanes // prod(level.grid)) for level in levels]
        lone = self.total == 1 and self.kernels != "dense"
        self.places = [places_of(level, self.shapes, self.lanes, self.wide, lone) for level in levels]
        for level, places in zip(levels, self.places, strict=True):
            check_reach(level, places)
        self._allocate()
        largest = max((place.size, name) for places in self.places for name, place in places.items())[1]
        self._expect(0, f"the network, whose largest value is {named(largest)},")

    def _expect(self, amount: int, what: str) -> None:
        """Refuse what does not fit beside the arena, the rows, and the constants, which are joined by a copy."""
        rows = sum(map(len, self.workers.rows))
        constants = self.stream.bytes + self.params.bytes + self.indices.bytes
        self.memory.expect(4 * self.arena_floats + ROW_BYTES * rows + 2 * constants + amount, what)

    def _allocate(self) -> None:
        self.floats = LINE_FLOATS  # a guard: shifted reads may begin a vector early
        for level, places in zip(self.levels, self.places, strict=True):
            self.floats = allocate(level, places, self.floats, self.workers.count, self.pools)

    def _convolutions(self) -> Iterator[tuple[Conv, Place, Place]]:
        """Each with the places of what it reads and gives."""
        for level, places in zip(self.levels, self.places, strict=True):
            for step in level.steps:
                if isinstance(step, Conv):
                    yield step, places[step.inputs[0]], places[step.name]

    def tables(self) -> tuple[NDArray[Any], ...]:
        """The finished rows of each worker, each with working memory of its own behind the values."""
        for worker, rows in enumerate(self.workers.rows):
            for row in rows:
                if row["kind"] in CONVOLUTIONS:
                    row["second"] = self.floats + worker * self.scratch
        return tuple(table_of(rows) for rows in self.workers.rows)

    @property
    def arena_floats(self) -> int:
        """Floats of working memory, with a guard behind."""
        return self.floats + self.workers.count * self.scratch + self.lanes

    def _emit(self, index: int, image: int) -> None:
        """All rows of a level's block that begins at an image, after those of the finer levels that feed it."""
        level, places = self.levels[index], self.places[index]
        if index:
            for start in range(0, self.images[index], self.images[index - 1]):
                self._emit(index - 1, image + start)
        if any(INPUT in step.inputs for step in level.steps):
            self._pack(places[INPUT], image, self.images[index])
            self._halo(places[INPUT], image)
        for name in self.read[index]:
            self._halo(places[name], image)
        for step in level.steps:
            self._step(step, places, image)
            self._halo(places[step.name], image)
            for later in self.later[index][step.name]:
                self._move(places[step.name], self.places[later][step.name], image, index, later)
            if step.name == self.output:
                self._unpack(places[step.name], image, self.images[index])

    def _read(self, reads: Sequence[Place], bounds: list[int], image: int, whole: bool = False) -> None:
        """Let workers wait for, and fetch, what they read of some values: the channels they make, or the `whole`."""
        for place in reads:
            for worker, other, first, last in self.workers.lacking(place, bounds, whole):
                rows, at = self.workers.rows[worker], place.origin + first * place.channel
                ends = {**target_of(place), "source_channel": place.channel, "source_row": place.row}
                start = {"source": at + other * place.apart, "target": at + worker * place.apart}
                common = {"image": image, **ends, **start, "channels": last - first}
                everything = self.indices.add(np.ones(self.lanes))
                rows.append({"kind": Kind.FETCH, **common, "table": everything})
                rows.append({"kind": Kind.HALO, **common, **self._halo_of(place)})

    def _each(self, kind: Kind, image: int, reads: Sequence[Place], writes: Place, **values: Any) -> None:
        """One row a worker that treats each channel alone: some, or all of its band, or of a copy that it fills."""
        bounds, filled = self.workers.bounds(reads[0]), reads[0] is self.input or reads[0] is writes
        everyone = writes.bands > 1 or (filled and self.workers.everywhere(writes))
        shares = self.workers.all_channels(writes) if everyone else list(pairwise(bounds))
        self._read(reads, bounds, image)
        apart = {"source": reads[0].apart, "second": reads[-1].apart, "target": writes.apart}
        strided = [name for name in apart if f"{name}_channel" in values]
        for worker, (first, last) in enumerate(shares):
            moved = {name: values[name] + first * values[f"{name}_channel"] + worker * apart[name] for name in strided}
            per_channel = {}
            if "affine" in values:
                constants = [*affine_of(values["affine"], first, last), values["factors"]]
                per_channel["params"] = self.params.add(np.concatenate(constants))
            kept = {name: value for name, value in values.items() if name not in ("affine", "factors")}
            row = {"kind": kind, "image": image, **kept, **moved, **per_channel, "channels": last - first}
            if last > first:
                self.workers.rows[worker].append(row)
        if not everyone:
            self.workers.wrote(writes, bounds)

    def _pixels(self, place: Place, images: int) -> Integers:
        """Where each image's pixels lie, from the place's origin."""
        _, height, width = place.shape
        self._expect(PIXEL_BYTES * images * height * width, "a table of pixels")
        y, x, n = np.arange(height)[:, None], np.arange(width), np.arange(images)[:, None, None]
        by, i = np.divmod(y, place.block[0])
        bx, j = np.divmod(x, place.block[1])
        lane = n % self.lanes * prod(place.grid) + by * place.grid[1] + bx
        return int32(i * place.row + (j + n // self.lanes) * self.lanes + lane).reshape(images, -1)

    def _samples(self, shape: Shape, images: int) -> Integers:
        size, pixels = prod(shape), shape[1] * shape[2]
        return int32(np.arange(images)[:, None] * size + np.arange(pixels))

    def _pairs(self, source: Integers, target: Integers) -> dict[str, Any]:
        """A table of what goes where."""
        pairs, run = runs_of(source, target)
        return {
            "table": self.indices.add(pairs),
            "count": len(pairs),
            "per_image": len(pairs) // len(source),
            "tile": run,
        }

    def _pack(self, place: Place, image: int, images: int) -> None:
        shape = self.input.shape
        ends = {"target": place.origin, "target_channel": place.channel}
        if shape[1:] == (1, 1):
            start = {"source": image * shape[0], "source_channel": 1, "depth": shape[0]}
            self._each(Kind.TRANSPOSE, image, [self.input], place, count=images, **start, **ends)
            return
        self.input.apart = prod(place.shape[1:]) if place.bands > 1 else 0
        pairs = self._pairs(self._samples(place.shape, images), self._pixels(place, images))
        start = {"source": image * prod(shape), "source_channel": shape[1] * shape[2]}
        self._each(Kind.PACK, image, [self.input], place, **start, **ends, **pairs)

    def _unpack(self, place: Place, image: int, images: int) -> None:
        shape = place.shape
        pairs = self._pairs(self._pixels(place, images), self._samples(shape, images))
        ends = {"target": image * prod(shape), "target_channel": shape[1] * shape[2]}
        start = {"source": place.origin, "source_channel": place.channel}
        self._each(Kind.UNPACK, image, [place], self.logits, **start, **ends, **pairs)

    def _move(self, source: Place, target: Place, image: int, here: int, there: int) -> None:
        images = self.images[here]
        lane = image % self.images[there] * prod(target.grid)
        ends = {"target": target.origin + lane, "target_channel": target.channel, "source_channel": source.channel}
        old, new = self._pixels(source, images), self._pixels(target, images)
        if source.bands == 1:
            pairs = self._pairs(old, new)
            far = {"flag": int(self.total > 1 and self.floats > FAR_ARENA)}
            self._each(Kind.MOVE, image, [source], target, source=source.origin, **ends, **pairs, **far)
            return
        parts = [self._pairs(old, part) for part in np.split(new, source.bands, axis=1)]
        if target.apart:
            self.workers.gather()  # as each takes all bands into its copy
        for worker, rows in enumerate(self.workers.rows):
            for band, part in enumerate(parts):
                if target.apart or band == worker:
                    row = {"kind": Kind.MOVE, "image": image, **ends, **part, "channels": source.shape[0]}
                    start = {"source": source.origin + band * source.apart}
                    rows.append(row | start | {"target": row["target"] + worker * target.apart})
        if not target.apart:
            self.workers.gather()

    def _halo(self, place: Place, image: int) -> None:
        if not place.haloed:
            return
        self._each(Kind.HALO, image, [place], place, **self._halo_of(place), **target_of(place))
        if place.bands > 1:
            self.workers.gather()
            for worker, rows in enumerate(self.workers.rows):
                for seam, taken in seams(place, worker, self.workers.count):
                    rows.append({"kind": Kind.FETCH, "image": image, **seam, "table": self.indices.add(taken)})

    def _halo_of(self, place: Place) -> dict[str, Any]:
        """The fields of a row that say what lies around a value."""
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
        return {"table": table, "count": outside.size, "low": place.fill, "flag": rows if usual else 0}

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
                self._expect(40 * prod(target.block), f"layer {step.name!r}")
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
            case Activation():
                kind = {"flag": NUMBERS[step.operation], "low": step.slope}
                self._each(Kind.CURVE, image, [source], target, **kind, **ends)
            case Softmax():
                self._read([source], self.workers.first_alone(source), image, whole=True)
                row = {"kind": Kind.SOFTMAX, "image": image, **ends, "channels": source.shape[0]}
                self.workers.rows[0].append(row)
                self.workers.wrote(target, self.workers.first_alone(source))
            case Flatten():
                self._flatten(source, target, image)

    def _flatten(self, source: Place, target: Place, image: int) -> None:
        """A view where the pixels already lie end to end, else a copy."""
        everything = self.workers.first_alone(target)
        self._read([source], everything, image, whole=True)
        if target.offset != source.offset:
            pixels = (self._pixels(source, 1)[0][:, None] + np.arange(self.lanes)).reshape(1, -1)
            pairs = self._pairs(pixels, np.arange(pixels.size, dtype=np.int32)[None])
            start = {"source": source.origin, "source_channel": source.channel, "channels": source.shape[0]}
            ends = {"target": target.origin, "target_channel": pixels.size}
            self.workers.rows[0].append({"kind": Kind.MOVE, "image": image, **pairs, **start, **ends})
        if target.offset != source.offset or self.workers.fresh(source):
            self.workers.wrote(target, everything)

    def _convolution(self, step: Conv, source: Place, target: Place, pooled: Place | None, image: int) -> None:
        """A row a worker, each with the weights of its own output channels; made once for all images."""
        recipe, into = self.recipes[step.name], pooled or target
        bounds = self.workers.fair_bounds(step, source, target, recipe)
        self._read([source], bounds, image, whole=True)
        shares = self.workers.all_channels(target) if target.bands > 1 else pairwise(bounds)
        for worker, (first, last) in enumerate(shares):
            if last == first:
                continue
            if (step.name, first) not in self.prepared:
                part = step.part(first, last)
                self._expect(making_bytes(recipe, part, self.lanes), f"layer {step.name!r}")
                layer = make(recipe, part, source, target)
                if pooled:
                    layer = layer.behind(*affine_of(self.pools[step.name].affine, first, last))
                start = {"target": into.origin + first * into.channel, "channels": last - first}
                self.prepared[step.name, first] = {
                    **self._layer(layer),
                    **source_of(source),
                    **target_of(into),
                    **start,
                    **dict(zip(("rows", "columns"), target.block, strict=True)),
                    "flag": int(pooled is not None),
                }
            row = self.prepared[step.name, first]
            ends = {"source": row["source"] + worker * source.apart, "target": row["target"] + worker * into.apart}
            self.workers.rows[worker].append(row | ends | {"image": image})
        self.workers.wrote(into, bounds)

    def _choose(self, step: Conv, source: Place, target: Place) -> Recipe:
        mine = -(-target.shape[0] // self.workers.count)
        ends = {**source_of(source), **target_of(target), "channels": mine}

        def measured(recipes: Sequence[Recipe]) -> list[float]:
            """For the channels that one worker makes; Winograd's workers all transform the whole input."""
            part = step.part(0, mine)
            needed = sum(making_bytes(recipe, part, self.lanes) for recipe in recipes)
            self._expect(needed, f"layer {step.name!r}")
            layers = [make(recipe, part, source, target) for recipe in recipes]
            self._expect(needed + 4 * max(layer.scratch for layer in layers), f"layer {step.name!r}")
            return costs(layers, ends, self.floats, self.lanes, far=self.total == 1)

        return choose(step, source, target, self.kernels, measured, self.total == 1)

    def _layer(self, layer: Layer) -> dict[str, Any]:
        """The fields of a convolution's row that point at its constants."""
        self.scratch = max(self.scratch, -(-layer.scratch // LINE_FLOATS) * LINE_FLOATS)
        made = {**layer.fields, "kind": layer.kind, "params": self.params.add(layer.params)}
        if layer.stream is not None:
            made["stream"] = self.stream.add(layer.stream)
        if layer.table is not None:
            made["table"] = self.indices.add(layer.table)
        return made
