"""Transposed convolutions, as convolutions of the small image whose channels are pixels of the large one.

With stride s, pixel t of a row of the result takes x[i] · w[k] for all t + padding = s · i + k. Pixels t = s · q + r of
one phase r take the same weights of x[q + δ], where δ = (r + padding - k) / s: a convolution with a channel per phase.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ModelError
from ...graph import Node
from .steps import Conv
from .views import View
from .weights import Weights

if TYPE_CHECKING:
    from .view_fusion import ViewFusion

MOST_PLACES = 1 << 48  # far more than any network has, and few enough for 64 bits


def transposed(fusion: ViewFusion, node: Node) -> None:
    """The step of a transposed convolution, and the view of its channels as pixels."""
    a, held = node.attributes, Weights.of(fusion.tensors[node.tensors["weight"]])
    source, target = fusion.direct(node.inputs[0]), fusion.shape_of(node.output)
    inputs, outputs, *kernel = held.shape
    groups, strides, depth = a["groups"], a["stride"], inputs // a["groups"]
    channels = target[0] * strides[0] * strides[1]
    fusion._take(node, 16 * channels + 32 * held.places.size)
    read, made, *places = np.unravel_index(held.places, held.shape)
    number, taps, margins, apart = read // depth * outputs + made, [], [], []
    sizes = zip(places, kernel, strides, a["padding"], fusion.bases[source][1:], target[1:], strict=True)
    for place, most, step, cut, side, whole in sizes:
        # Of weight k: the phase r with r + cut - k a multiple of the step, and by how far its pixel lies away.
        phase = (place - cut) % step
        away = (phase + cut - place) // step
        reach = max(-(-cut // step), (most - 1 - cut) // step, 0)
        beyond = max(0, -(-(whole - step * side) // step))  # pixels of phases after the last one of the image
        number = number * step + phase
        taps.append(away + reach)
        margins.append((2 * reach + 1, reach + beyond))
        apart.append((side + 2 * beyond, beyond * step))
    (rows, top), (columns, left) = margins
    shape = (channels, depth, rows, columns)
    if prod(shape) > MOST_PLACES:
        raise ModelError(f"the engine knows transposed convolutions of at most {MOST_PLACES:,} places for weights.")
    flat = np.ravel_multi_index((number, read % depth, *taps), shape)
    order = np.argsort(flat)
    weight = Weights(shape, flat[order], held.values[order])
    bias = fusion.tensor(node, "bias") if "bias" in node.tensors else np.zeros(target[0], np.float32)
    repeated = np.repeat(bias, strides[0] * strides[1])
    (height, above), (width, before) = apart
    base = channels, height, width
    step = Conv(node.output, (source,), weight, repeated, padding=(top, left), groups=groups)
    phases = View.of(node.output, base, (target[0], *strides, height, width)).permuted([0, 3, 1, 4, 2])
    view = phases.reshaped((target[0], height * strides[0], width * strides[1]))
    assert view is not None
    if (above, before) == (0, 0) and view.shape == target:
        fusion._view(node, step, view)
        return
    fusion.steps[step.name], fusion.bases[step.name] = step, base
    copied = fusion.copied(node.output, view, [0], (target[0], height * strides[0], width * strides[1]))
    for dim, first in ((1, above), (2, before)):
        cut_off = copied.sliced(dim, first, first + target[dim], 1)
        assert cut_off is not None
        copied = cut_off
    fusion.names[node.output], fusion.views[node.output] = copied.step, copied
