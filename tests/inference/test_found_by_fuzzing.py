"""Small networks that random graphs once found to fail."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.errors import ModelError
from fedsparsify.graph import INPUT, Node
from fedsparsify.inference import Engine
from fedsparsify.model import Layout, SparseModel
from fedsparsify.ops import reference
from fedsparsify.ops.constant import attributes_of

EMPTY = SparseModel(Layout((), ()), np.zeros(0, np.float32), np.zeros(0, np.bool_))
UNEVEN = Node("reshape", "y", (INPUT,), {}, {"start": 1, "end": 4, "sizes": [7, 2, 2, 16, 2]})
CASES = {
    "views alone": ([Node("permute", "y", (INPUT,), {}, {"order": [3, 1, 2]})], (1, 14, 1)),
    "uneven reshape": ([UNEVEN], (64, 1, 14)),
    "first channels of a step": (
        [
            Node("relu", "r", (INPUT,), {}, {}),
            Node("slice", "y", ("r",), {}, {"axis": 1, "start": 0, "stop": 3, "step": 1}),
        ],
        (8, 4, 4),
    ),
    "constant, flat": ([Node("constant", "y", (), {}, attributes_of([1.0, 2.0, 3.0]))], (4,)),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_numpy(case: str) -> None:
    graph, sample = CASES[case]
    batch = np.random.default_rng(0).standard_normal((40, *sample), np.float32)
    wanted = reference(graph, {}, batch)
    received = Engine(EMPTY, 1, graph).run(batch)
    np.testing.assert_array_equal(received, np.broadcast_to(wanted, (40, *wanted.shape[1:])))


def test_windows_of_a_constant_are_refused() -> None:
    pixels = Node("constant", "p", (), {}, attributes_of([[[1.0, 2.0], [3.0, 4.0]]]))
    sizes = {
        "kernel": [4000, 4000],
        "stride": [4000, 4000],
        "padding": [2000, 2000],
        "ceil": False,
        "count_padding": True,
    }
    with pytest.raises(ModelError, match="layer 'y': avg_pool2d of a value that all samples have alike"):
        Engine(EMPTY, 1, [pixels, Node("avg_pool2d", "y", ("p",), {}, sizes)], max_memory=3_000_000).run(
            np.zeros((1, 4), np.float32)
        )


def test_layer_norm_of_equal_values_is_zero() -> None:
    """A mean that is off by its last bit would give 4e-5: it is divided by the root of 1e-5."""
    graph = [Node("layer_norm", "y", (INPUT,), {}, {"axes": 1, "eps": 1e-5})]
    batch = np.random.default_rng(0).standard_normal((40, 5, 1), np.float32).repeat(8, 2)
    np.testing.assert_array_equal(Engine(EMPTY, 1, graph).run(batch), np.zeros_like(batch))
