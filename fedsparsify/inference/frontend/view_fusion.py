"""Values of any number of dimensions while a graph becomes steps: views, constants, and copies into other layouts.

Values are views of what steps give (`views.py`). An operation asks for the layout that it needs; where a view is
another, a `Relayout` copies. Features of tokens are channels and tokens are pixels, so that a linear layer on tokens is
a convolution of 1 × 1 with its kernels, and a layer norm is a norm over the channels of each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...graph import INPUT, Node
from ...model import Floats
from ...ops import OPERATIONS, roles
from ...ops.base import FrontEnd
from .fusion import Fusion, Shape
from .steps import Constant, Part, Relayout, Step
from .views import Atom, View, line

SIZES = ("stride", "padding", "dilation")


def image_of(shape: Sequence[int]) -> Shape:
    """How a step has a value of at most three dimensions, the first of which are channels."""
    sides = (*shape, 1, 1)[:3] if len(shape) != 2 else (shape[0], 1, shape[1])
    return sides[0], sides[1], sides[2]


@dataclass
class ViewFusion(Fusion):
    """Steps under construction, with the shape and the view of every value known."""

    views: dict[str, View] = field(default_factory=dict)  # of values
    constants: dict[str, Floats] = field(default_factory=dict)  # values that all samples have alike
    aliases: dict[str, str] = field(default_factory=dict)  # value → the one that it is a view of
    bases: dict[str, Shape] = field(default_factory=dict)  # shape of what each step gives
    lines: bool = False  # whether all that is not an image lies in one row

    def begin(self, sample: tuple[int, ...]) -> None:
        """Take the input's shape."""
        self.shapes[INPUT] = sample
        self.bases[INPUT] = image_of(sample)
        self.views[INPUT] = View.of(INPUT, self.bases[INPUT], sample)

    def lower(self, node: Node) -> None:
        """Compute what all samples have alike now; let the operation say what is to be computed of the rest."""
        if not all(name in self.constants for name in node.inputs) or node.op in ("constant", "parameter"):
            OPERATIONS[node.op].lower(node, cast(FrontEnd, self))
            return
        if OPERATIONS[node.op].windowed:
            raise ModelError(f"{node.op} of a value that all samples have alike. Replace it by its result.")
        shape = self.shape_of(node.output)
        self.memory.expect(32 * prod(shape), f"layer {node.output!r}")
        given = [self.constants[name][None] for name in node.inputs]
        tensors = {role: self.tensor(node, role) for role in roles(node, self.tensors)}
        made = OPERATIONS[node.op].reference(given, tensors, node.attributes)[0]
        self.constant(node, np.asarray(made, np.float32))

    def constant(self, node: Node, values: Floats) -> None:
        """Values that every sample has alike."""
        self.constants[node.output] = values
        self.names[node.output] = node.output

    def shape_of(self, value: str) -> tuple[int, ...]:
        """The shape of a value; all are known here."""
        return tuple(int(side) for side in self.shapes[value] or ())  # type: ignore[arg-type]

    # Layouts.

    def _give(self, node: Node, step: Step) -> None:
        """A step that gives a value as an image."""
        shape = self.shape_of(node.output)
        self._view(node, step, View.of(step.name, image_of(shape), shape))

    def _view(self, node: Node, step: Step, view: View) -> None:
        """A step that gives a value in some layout."""
        self.steps[step.name], self.bases[step.name] = step, view.base
        self.names[node.output], self.views[node.output] = step.name, view

    def _alias(self, node: Node, view: View) -> None:
        """A value that is a view of another."""
        self.names[node.output], self.views[node.output] = view.step, view
        self.aliases[node.output] = node.inputs[0]

    def _on_the_way(self, name: str, make: Any, base: Shape) -> str:
        """A further step, by a name that nothing has."""
        name = self._unused(name)
        while name in self.steps:
            name += "'"
        self.steps[name], self.bases[name] = make(name), base
        return name

    def view(self, value: str) -> View:
        """A value's view; constants become steps, last dimension first in the channels."""
        if value in self.constants:
            shape = self.shape_of(value)
            return self.constant_view(value, self.constants[value], [len(shape) - 1] if shape else [])
        return self.views[value]

    def constant_view(self, name: str, values: Floats, channels: Sequence[int]) -> View:
        """A constant as a step, with some dimensions as channels."""
        self.memory.expect(8 * values.size, f"layer {name!r}")
        self.memory.take(4 * values.size, f"layer {name!r}")
        order, base = self._base(values.shape, channels)
        turned = np.ascontiguousarray(values.transpose(order)).reshape(base)
        step = self._on_the_way(f"{name}.constant", lambda name: Constant(name, turned), base)
        return self._placed(step, base, values.shape, order)

    def _base(self, shape: Sequence[int], channels: Sequence[int]) -> tuple[list[int], Shape]:
        """The order of dimensions, channels first, and the shape of a step with these channels."""
        pixels = [k for k in range(len(shape)) if k not in channels]
        sides = [shape[k] for k in pixels if shape[k] > 1]
        if len(sides) == 2 and not self.lines:
            rows, columns = sides
        else:
            rows, columns = (1, prod(sides)) if self.lines else line(prod(sides))
        return [*channels, *pixels], (prod(shape[k] for k in channels), rows, columns)

    @staticmethod
    def _placed(step: str, base: Shape, shape: Sequence[int], order: Sequence[int]) -> View:
        """The view of a value whose dimensions lie in some order."""
        strides = {dim: prod(shape[k] for k in order[place + 1 :]) for place, dim in enumerate(order)}
        return View(step, base, tuple((Atom(side, strides[dim]),) for dim, side in enumerate(shape)))

    def copied(self, name: str, view: View, channels: Sequence[int], base: Shape | None = None) -> View:
        """A value copied into another layout."""
        shape = view.shape
        order, chosen = self._base(shape, channels)
        target = base or chosen
        if base is not None:
            order = list(range(len(shape)))
        placed = self._placed("", target, shape, order)
        part = part_of(0, view, placed)
        step = self._on_the_way(f"{name}.layout", lambda name: Relayout(name, (view.step,), (part,)), target)
        return placed.on(step)

    def oriented(self, value: str, channels: Sequence[int]) -> View:
        """A value whose channels are some dimensions, and whose pixels are all others."""
        view = self.view(value)
        made = view if view.oriented(channels) else self.copied(value, view, channels)
        if value not in self.constants:
            self.views[value] = made
        return made

    def whole(self, value: str) -> View:
        """A value that is all of what a step gives."""
        view = self.view(value)
        if view.whole:
            return view
        made = self.views[value] = self.copied(value, view, view.channel_dims())
        return made

    def direct(self, value: str) -> str:
        """The step that gives a value as an image."""
        shape, view = self.shape_of(value), self.view(value)
        if len(shape) > 3:
            raise ModelError(f"the engine takes values of at most three dimensions here. Received: {shape}.")
        base = image_of(shape)
        if view.places == View.of("", base, shape).places:
            return view.step
        made = self.copied(value, view, [0], base)
        if value not in self.constants:
            self.views[value] = made
        return made.step

    def _inputs(self, node: Node) -> tuple[str, ...]:
        return tuple(self.direct(name) for name in node.inputs)

    def _sole(self, node: Node) -> Step | None:
        """The step before a node, if nothing else reads it, and the node reads all of it."""
        return self._sole_of(node.inputs[0])

    def _sole_of(self, value: str | None) -> Step | None:
        if value is None or value in self.constants or not self.views[value].whole:
            return None
        step = self.views[value].step
        while value is not None:
            if self.reads[value] != 1:
                return None
            value = self.aliases.get(value)
        read = sum(step in other.inputs for other in self.steps.values())
        return self.steps.get(step) if not read else None

    # Views alone.

    def permute(self, node: Node) -> None:
        """Dimensions in another order."""
        self._alias(node, self.view(node.inputs[0]).permuted([k - 1 for k in node.attributes["order"]]))

    def reshape(self, node: Node) -> None:
        """Dimensions of other sizes."""
        shape, value = self.shape_of(node.output), node.inputs[0]
        made = self.view(value).reshaped(shape)
        if made is None:
            made = self.whole(value).reshaped(shape)
        if made is None:
            self.views[value] = self.copied(value, self.view(value), [])
            made = self.views[value].reshaped(shape)
        assert made is not None
        self._alias(node, made)

    def flatten(self, node: Node) -> None:
        """The dimensions from one on in one."""
        shape = self.shape_of(node.inputs[0])
        if node.attributes["start"] == 1 and len(shape) == 3 and prod(shape[1:]) > 1 and self._is_image(node.inputs[0]):
            super().flatten(node)
        else:
            self.reshape(node)

    def _is_image(self, value: str) -> bool:
        view = self.view(value)
        return view.places == View.of("", image_of(view.shape), view.shape).places

    def slice(self, node: Node) -> None:
        """Some of the values along one dimension."""
        a, value = node.attributes, node.inputs[0]
        words = a["axis"] - 1, a["start"], a["stop"], a["step"]
        made = self.view(value).sliced(*words) or self.whole(value).sliced(*words)
        if made is None:
            view = self.views[value]
            self.views[value] = self.copied(value, view, view.channel_dims())
            made = self.views[value].sliced(*words)
        assert made is not None
        self._alias(node, made)

    # Copies.

    def pad(self, node: Node) -> None:
        """A border around a value."""
        a, view = node.attributes, self.view(node.inputs[0])
        shape = self.shape_of(node.output)
        placed = self._target(node, shape, self._channels(view))
        offset = sum(amount * _stride(dim) for amount, dim in zip(a["before"], placed.dims, strict=True))
        part = replace(part_of(0, view, _cut(placed, view.shape)), target_offset=offset)
        self._view(node, Relayout(node.output, (view.step,), (part,), float(a["value"])), placed.on(node.output))

    def _channels(self, view: View) -> list[int]:
        """The dimensions to be channels where a value is written anew: as before, else the last."""
        return view.channel_dims() or [len(view.dims) - 1]

    def _target(self, node: Node, shape: tuple[int, ...], channels: Sequence[int]) -> View:
        order, base = self._base(shape, channels)
        if list(channels) == [0] and len(shape) <= 3:
            base = image_of(shape)
        return self._placed("", base, shape, order)

    def concatenate(self, node: Node) -> None:
        """Values one after another along the node's `axis`."""
        axis, shape = node.attributes.get("axis", 1) - 1, self.shape_of(node.output)
        like = next(name for name in node.inputs if name not in self.constants)
        channels = self._channels(self.view(like))
        if len(shape) == 1:
            channels = [0]
        placed, first, parts, inputs = self._target(node, shape, channels), 0, [], []
        stride = _stride(placed.dims[axis])
        for number, name in enumerate(node.inputs):
            view = self.view(name)
            part = part_of(number, view, _cut(placed, view.shape))
            parts.append(replace(part, target_offset=first * stride))
            inputs.append(view.step)
            first += view.shape[axis]
        self._view(node, Relayout(node.output, tuple(inputs), tuple(parts)), placed.on(node.output))

    def finish(self, value: str) -> str:
        """The step that gives the network's output, its entries in order."""
        shape = self.shape_of(value)
        view = self.view(value)
        if view.whole and view.places == View.of("", view.base, shape).places and view.step != INPUT:
            return view.step
        base = image_of(shape) if len(shape) <= 3 else (shape[0], 1, prod(shape[1:]))
        return self.copied(value, view, [0], base).step


def numbers_of(view: View) -> NDArray[np.int64]:
    """The numbers of all entries of a view, in its shape."""
    made = np.full((), view.offset, np.int64)
    for size, stride in view.atoms:
        made = made[..., None] + np.arange(size) * stride
    return made.reshape(view.shape)


def _stride(dim: Sequence[Atom]) -> int:
    return dim[0].stride if dim else 0


def _cut(view: View, shape: Sequence[int]) -> View:
    """The first entries of a view that was just placed, along every dimension."""
    return replace(view, dims=tuple((Atom(side, _stride(dim)),) for side, dim in zip(shape, view.dims, strict=True)))


def part_of(number: int, source: View, target: View) -> Part:
    """The copy of one view to another of the same shape."""
    atoms: list[tuple[int, int, int]] = []
    for one, other in zip(source.dims, target.dims, strict=True):
        left, right = list(one)[::-1], list(other)[::-1]
        left, right = [a for a in left if a.size > 1], [a for a in right if a.size > 1]
        while left and right:
            a, b = left.pop(), right.pop()
            if a.size == b.size:
                atoms.append((a.size, a.stride, b.stride))
            elif a.size % b.size == 0:
                rest = a.size // b.size
                atoms.append((b.size, a.stride * rest, b.stride))
                left.append(Atom(rest, a.stride))
            elif b.size % a.size == 0:
                rest = b.size // a.size
                atoms.append((a.size, a.stride, b.stride * rest))
                right.append(Atom(rest, b.stride))
            else:
                raise ModelError("the engine cannot copy between these layouts.")
    return Part(number, tuple(atoms), source.offset, target.offset)
