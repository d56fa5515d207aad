"""The shape of every value of a graph, without the batch dimension."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod

from ..errors import ModelError
from ..graph import INPUT, Node
from ..model import Layout

Shape = tuple[int, ...]


def shapes_of(graph: Sequence[Node], sample: Sequence[int], layout: Layout) -> dict[str, Shape]:
    """Value → shape, as PyTorch computes it; a network that does not fit its samples is refused."""
    tensors = {spec.name: spec.shape for spec in layout}
    found: dict[str, Shape] = {INPUT: tuple(sample)}
    for node in graph:
        inputs = [found[name] for name in node.inputs]
        try:
            found[node.output] = _shape(node, inputs, tensors.get(node.tensors.get("weight", ""), ()))
        except (ValueError, IndexError):
            found[node.output] = ()
        if not found[node.output] or min(found[node.output]) < 1:
            raise ModelError(f"{node.op} at {node.output!r} cannot read a value of shape {inputs[0]}.")
    return found


def _shape(node: Node, inputs: Sequence[Shape], weight: Shape) -> Shape:
    x, a = inputs[0], node.attributes
    match node.op:
        case "linear":
            return (*x[:-1], weight[0])
        case "conv2d":
            spans = [d * (k - 1) + 1 for d, k in zip(a["dilation"], weight[2:], strict=True)]
            return (weight[0], *_windows(node, x[-2:], spans, False))
        case "max_pool2d" | "avg_pool2d":
            return (*x[:-2], *_windows(node, x[-2:], a["kernel"], a["ceil"]))
        case "adaptive_avg_pool2d":
            return (*x[:-2], *a["size"])
        case "flatten":
            return (*x[: a["start"] - 1], prod(x[a["start"] - 1 :]))
        case "add":
            pairs = zip_longest(reversed(x), reversed(inputs[1]), fillvalue=1)
            return tuple(max(pair) for pair in pairs)[::-1]
    return x


def _windows(node: Node, sizes: Shape, spans: Sequence[int], ceil: bool) -> list[int]:
    """How many windows fit along each axis; with `ceil` one may go over the edge if it begins before the padding."""
    counts = []
    for size, span, stride, pad in zip(sizes, spans, *(node.attributes[n] for n in ("stride", "padding")), strict=True):
        room = size + 2 * pad - span
        count = (-(-room // stride) if ceil else room // stride) + 1
        counts.append(count - 1 if ceil and (count - 1) * stride >= size + pad else count)
    return counts
