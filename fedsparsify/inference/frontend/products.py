"""Matrix products of two values: which entries of which steps they multiply."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...graph import Node
from .steps import MatMul, Operand
from .views import Atom, View

if TYPE_CHECKING:
    from .view_fusion import ViewFusion


def product(fusion: ViewFusion, node: Node) -> None:
    """The step of a node that multiplies matrices."""
    shape = fusion.shape_of(node.output)
    first, one = _operand(fusion, node, 0, shape)
    second, other = _operand(fusion, node, 1, shape)
    rank = len(shape)
    # Scores lie with their shares in the channels. What they weight lies as the values do: heads in the channels.
    alike = [k for k in range(rank - 2) if shape[k] > 1 and second.in_channels(k) and not first.in_channels(k)]
    channels = [*alike, rank - 1]
    pixels = [k for k in range(rank) if k not in channels]
    order, base = fusion._base(shape, channels)
    placed = fusion._placed(node.output, base, shape, order)
    assert [*channels, *pixels] == order
    fusion.memory.expect(64 * (one.rows.size + other.rows.size + prod(shape)), f"layer {node.output!r}")
    target = _tables(placed, rank - 2, rank - 1, False)
    step = MatMul(node.output, (first.step, second.step), one, other, target)
    fusion._view(node, step, placed)


def _operand(fusion: ViewFusion, node: Node, place: int, shape: tuple[int, ...]) -> tuple[View, Operand]:
    """One of the two values: its columns, or its rows, must be whole channels."""
    value, rank = node.inputs[place], len(shape)
    view = fusion.view(value)
    if not (view.in_channels(rank - 1) or view.in_channels(rank - 2)):
        view = fusion.copied(value, view, [rank - 1])
    repeated = view.repeated((*shape[:-2], *view.shape[-2:]))
    turned = not view.in_channels(rank - 1)
    rows, columns = (rank - 1, rank - 2) if turned else (rank - 2, rank - 1)
    return view, _tables(repeated, rows, columns, turned)


def _tables(view: View, rows: int, columns: int, turned: bool) -> Operand:
    """Entry numbers by (matrix, row), and by column."""

    def numbers(dims: list[int]) -> np.ndarray:
        made = np.zeros((), np.int64)
        for dim in dims:
            for size, stride in view.dims[dim] or (Atom(1, 0),):
                made = made[..., None] + np.arange(size) * stride
        return made

    matrices = [k for k in range(len(view.dims)) if k not in (rows, columns)]
    by_row = view.offset + numbers([*matrices, rows]).reshape(-1, view.shape[rows])
    return Operand(by_row, numbers([columns]).ravel(), turned)
