"""From a graph to fused steps for samples of one shape: products, norms and means of values of any dimensions.

Features of tokens are channels and tokens are pixels (`view_fusion.py`), so that a linear layer on tokens is a
convolution of 1 × 1 with its kernels, and a layer norm is a norm over the channels of each pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Node
from ...model import Floats
from .products import product
from .steps import Activation, Add, Affine, Constant, Conv, Mul, Norm, Pool, Relayout, Softmax, Step
from .transposed import transposed
from .view_fusion import ViewFusion, numbers_of, part_of
from .views import Atom, View
from .weights import Weights

SIZES = ("stride", "padding", "dilation")


@dataclass
class ShapedFusion(ViewFusion):
    """Steps under construction, for samples of one shape (see ops.base.FrontEnd)."""

    def clamp(self, node: Node, low: float, high: float) -> None:
        """Values below and above two bounds are set to them."""
        view = self.whole(node.inputs[0])
        before = self._sole(node)
        if isinstance(before, Conv | Pool | Affine | Add) and (before.low, before.high) == (-inf, inf):
            self._view(node, replace(before, low=low, high=high), view)
        else:
            self._view(node, Affine(node.output, (view.step,), None, low, high), view.on(node.output))

    def affine(self, node: Node, scale: NDArray[np.float64], shift: NDArray[np.float64]) -> None:
        """Scale and shift per channel, which need not be a channel of the step that gives the value."""
        value = node.inputs[0]
        if not self._is_image(value):
            view, shape = self.whole(value), self.shape_of(value)
            number = np.arange(scale.size).reshape(-1, *[1] * (len(shape) - 1))
            laid = self._laid(node, view, np.broadcast_to(number, shape)).reshape(view.base[0], -1)
            if (laid == laid[:, :1]).all():
                by_channel = laid[:, 0].astype(np.int64)
                self._scale(node, view, self._sole_of(value), scale[by_channel], shift[by_channel])
                return
            self.direct(value)
        super().affine(node, scale, shift)

    def activation(self, node: Node, slope: float = 0.0) -> None:
        """The operation's own `kernel`, for each value alone."""
        view = self.whole(node.inputs[0])
        self._view(node, Activation(node.output, (view.step,), node.op, slope), view.on(node.output))

    def add(self, node: Node) -> None:
        """The sum of two values."""
        self._combine(node, Add)

    def multiply(self, node: Node) -> None:
        """The product of two values."""
        self._combine(node, Mul)

    def _combine(self, node: Node, kind: type[Add]) -> None:
        shape = self.shape_of(node.output)
        first, second = node.inputs
        if first in self.constants or (second not in self.constants and self._smaller(first, second)):
            first, second = second, first
        if self.shape_of(first) != shape:
            wide = self.view(first).repeated(shape)
            view = self.copied(node.output, wide, self._channels(wide))
        else:
            view = self.whole(first)
        if second in self.constants:
            self._with_constant(node, kind, first, view, np.broadcast_to(self.constants[second], shape))
            return
        other, gated = self._beside(node, view, second), False
        if other is None:
            gated = self._gates(view, self.view(second))
            other = self.view(second).step if gated else self._spread(node, view, self.view(second))
        self._view(node, kind(node.output, (view.step, other), gated=gated), view.on(node.output))

    def _smaller(self, first: str, second: str) -> bool:
        return prod(self.shape_of(first)) < prod(self.shape_of(second))

    def _beside(self, node: Node, view: View, value: str) -> str | None:
        """The step of a value that lies as a view does."""
        other = self.view(value)
        return other.step if other.places == view.places else None

    def _gates(self, view: View, other: View) -> bool:
        """Whether a value has one pixel, and its channels are those of a view."""
        if other.base[1:] != (1, 1) or other.base[0] != view.base[0] or not other.whole:
            return False
        pixels = view.pixels
        for dim, gate in zip(view.dims, other.dims, strict=True):
            outer = [Atom(size, stride // pixels) for size, stride in dim if size > 1 and stride >= pixels]
            inner = [atom for atom in dim if atom.size > 1 and atom.stride < pixels]
            uneven = any(stride % pixels for size, stride in dim if size > 1 and stride >= pixels)
            if uneven or outer != [atom for atom in gate if atom.size > 1] or (outer and inner):
                return False
        return True

    def _spread(self, node: Node, view: View, other: View) -> str:
        """A step that gives a value, repeated along its sides of 1, where another lies."""
        part = part_of(0, other.repeated(view.shape), view)
        return self._on_the_way(f"{node.output}.spread", lambda name: Relayout(name, (other.step,), (part,)), view.base)

    def _with_constant(self, node: Node, kind: type[Add], value: str, view: View, values: Floats) -> None:
        """A sum or product with values that all samples have alike: scale and shift where they differ by channel."""
        laid = self._laid(node, view, values)
        ends = laid.reshape(view.base[0], -1)
        if (ends == ends[:, :1]).all():
            ones, zeros = np.ones(view.base[0]), np.zeros(view.base[0])
            by_channel = ends[:, 0].astype(np.float64)
            scaling = (ones, by_channel) if kind is Add else (by_channel, zeros)
            self._scale(node, view, self._sole_of(value), *scaling)
            return
        self.memory.take(4 * values.size, f"layer {node.output!r}")
        other = self._on_the_way(f"{node.output}.constant", lambda name: Constant(name, laid), view.base)
        self._view(node, kind(node.output, (view.step, other)), view.on(node.output))

    def _laid(self, node: Node, view: View, values: NDArray[Any]) -> Floats:
        """Values of a view's shape, as they lie in the step that the view is all of."""
        self.memory.expect(12 * values.size, f"layer {node.output!r}")
        flat = np.empty(prod(view.base), np.float32)
        flat[numbers_of(view).ravel()] = values.ravel()
        return flat.reshape(view.base)

    def _scale(
        self, node: Node, view: View, sole: Step | None, scale: NDArray[np.float64], shift: NDArray[np.float64]
    ) -> None:
        """Scale and shift per channel, as part of the step before where that can be."""
        with np.errstate(all="ignore"):  # what is beyond float32 becomes infinite, as in training
            if isinstance(sole, Conv) and (sole.low, sole.high) == (-inf, inf) and np.isfinite(shift).all():
                bias = (sole.bias * scale + shift).astype(np.float32)
                self._view(node, replace(sole, weight=sole.weight.scaled(scale), bias=bias), view)
                return
            affine = scale.astype(np.float32), shift.astype(np.float32)
            self._view(node, Affine(node.output, (view.step,), affine), view.on(node.output))

    def prelu(self, node: Node) -> None:
        """Negative values times the node's factors: a sum of two clamps, one of them scaled."""
        value, name = self.direct(node.inputs[0]), node.output
        base = self.bases[value]
        factors = np.broadcast_to(self.tensor(node, "weight"), base[:1])
        scaling = np.ascontiguousarray(factors), np.zeros(base[0], np.float32)
        above = self._on_the_way(f"{name}.above", lambda n: Affine(n, (value,), None, 0.0), base)
        below = self._on_the_way(f"{name}.below", lambda n: Affine(n, (value,), None, high=0.0), base)
        scaled = self._on_the_way(f"{name}.scaled", lambda n: Affine(n, (below,), scaling), base)
        self._give(node, Add(name, (above, scaled)))

    # Products, norms and means.

    def convolution_of_rows(self, node: Node, attributes: Any) -> None:
        """A convolution of images of one row."""
        weight, bias = self._weights(node)
        out, depth, length, _ = weight.shape
        stride, padding, dilation = ((attributes[key][0], attributes[key][1]) for key in SIZES)
        turned, groups = Weights((out, depth, 1, length), weight.places, weight.values), attributes["groups"]
        self._give(node, Conv(node.output, self._inputs(node), turned, bias, stride, padding, dilation, groups))

    def transposed_convolution(self, node: Node) -> None:
        """A transposed convolution by the node's attributes."""
        transposed(self, node)

    def linear(self, node: Node) -> None:
        """A product with the node's weight, along the last dimension."""
        value = node.inputs[0]
        view = self.oriented(value, [len(self.shape_of(value)) - 1])
        self._product(node, view, *self._weights(node))

    def _product(self, node: Node, view: View, weight: Weights, bias: Floats) -> None:
        """A 1 × 1 convolution of a view whose last dimension is the channels."""
        outputs = weight.shape[0]
        made = replace(view, base=(outputs, *view.base[1:]), dims=(*view.dims[:-1], (Atom(outputs, view.pixels),)))
        step = Conv(node.output, (view.step,), weight, bias, flat=view.pixels == 1)
        self._view(node, step, made.on(node.output))

    def matmul(self, node: Node) -> None:
        """The matrix product of two values."""
        product(self, node)

    def softmax(self, node: Node) -> None:
        """Shares along one dimension."""
        axis, value = int(node.attributes["axis"]), node.inputs[0]
        rank = len(self.shape_of(value))
        view = self.oriented(value, [axis - 1 if axis > 0 else rank + axis])
        self._view(node, Softmax(node.output, (view.step,), 1), view.on(node.output))

    def layer_norm(self, node: Node) -> None:
        """Zero mean and unit variance over the last dimensions."""
        axes, value = node.attributes["axes"], node.inputs[0]
        rank = len(self.shape_of(value))
        view = self.oriented(value, list(range(rank - axes, rank)))
        scale, shift = np.ones(view.base[0], np.float32), np.zeros(view.base[0], np.float32)
        scale = self.tensor(node, "weight").ravel() if "weight" in node.tensors else scale
        shift = self.tensor(node, "bias").ravel() if "bias" in node.tensors else shift
        eps = float(node.attributes["eps"])
        self._view(node, Norm(node.output, (view.step,), eps, (scale, shift)), view.on(node.output))

    def mean(self, node: Node) -> None:
        """The mean over some dimensions."""
        value, axes = node.inputs[0], [axis - 1 for axis in node.attributes["axes"]]
        shape = self.shape_of(value)
        others = [k for k in range(len(shape)) if k not in axes]
        view = self.view(value)
        if view.oriented(others) and view.pixels > 1:
            made = View(
                node.output, (view.base[0], 1, 1),
                tuple(
                    () if k in axes else tuple(Atom(size, stride // view.pixels) for size, stride in dim)
                    for k, dim in enumerate(view.dims)
                ),
            )  # fmt: skip
            self._view(node, Pool(node.output, (view.step,), mean=True, size=(1, 1)), made)
            return
        view = self.oriented(value, axes)
        count = view.base[0]
        weight = Weights((1, count, 1, 1), np.arange(count), np.full(count, 1 / count, np.float32))
        made = replace(
            view, base=(1, *view.base[1:]), dims=tuple(() if k in axes else view.dims[k] for k in range(len(shape)))
        )
        step = Conv(node.output, (view.step,), weight, np.zeros(1, np.float32), flat=view.pixels == 1)
        self._view(node, step, made.on(node.output))

    def group_norm(self, node: Node) -> None:
        """Zero mean and unit variance over groups of channels: means of all pixels, then of a group's channels."""
        source, name = self.direct(node.inputs[0]), node.output
        base, groups = self.bases[source], node.attributes["groups"]
        channels, one = base[0], (base[0], 1, 1)
        size = channels // groups
        self._take(node, 24 * channels * size)
        rows = np.repeat(np.arange(channels), size)
        places = rows * channels + rows // size * size + np.tile(np.arange(size), channels)
        zeros = np.zeros(channels, np.float32)

        def means(of: str, tag: str, sign: float) -> str:
            pooled = of
            if base[1:] != (1, 1):
                pooled = self._on_the_way(f"{name}.{tag}", lambda n: Pool(n, (of,), mean=True, size=(1, 1)), one)
            weight = Weights((channels, channels, 1, 1), places, np.full(places.size, sign / size, np.float32))
            return self._on_the_way(f"{name}.{tag}s", lambda n: Conv(n, (pooled,), weight, zeros, flat=True), one)

        gated = base[1:] != (1, 1)
        mean = means(source, "mean", -1.0)
        centred = self._on_the_way(f"{name}.centred", lambda n: Add(n, (source, mean), gated=gated), base)
        squares = self._on_the_way(f"{name}.squares", lambda n: Mul(n, (centred, centred)), base)
        variance = means(squares, "variance", 1.0)
        shift = np.ones(channels, np.float32), np.full(channels, node.attributes["eps"], np.float32)
        spread = self._on_the_way(f"{name}.spread", lambda n: Affine(n, (variance,), shift), one)
        rooted = self._on_the_way(f"{name}.root", lambda n: Activation(n, (spread,), "sqrt"), one)
        factor = self._on_the_way(f"{name}.factor", lambda n: Activation(n, (rooted,), "reciprocal"), one)
        scale = self.tensor(node, "weight") if "weight" in node.tensors else np.ones(channels, np.float32)
        shift_by = self.tensor(node, "bias") if "bias" in node.tensors else zeros
        scaled = self._on_the_way(f"{name}.scale", lambda n: Affine(n, (factor,), (scale, zeros)), one)
        made = self._on_the_way(f"{name}.scaled", lambda n: Mul(n, (centred, scaled), gated=gated), base)
        self._give(node, Affine(name, (made,), (np.ones(channels, np.float32), shift_by)))
