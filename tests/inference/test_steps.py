"""What a graph is read into."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from fedsparsify.errors import ModelError
from fedsparsify.graph import Node
from fedsparsify.inference.frontend.fusion import fuse
from fedsparsify.inference.frontend.steps import Add, Affine, Conv, Flatten, Pool

CONV = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
POOL = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil": False}
NORM = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "variance"}
TENSORS = {
    "w": np.ones((2, 2, 1, 1), np.float32),
    "b": np.array([1, 2], np.float32),
    "scale": np.array([2, 6], np.float32),
    "shift": np.array([0, 1], np.float32),
    "mean": np.array([1, 0], np.float32),
    "variance": np.array([3, 8], np.float32),
}


def conv(output: str, source: str) -> Node:
    return Node("conv2d", output, (source,), {"weight": "w", "bias": "b"}, CONV)


def norm(output: str, source: str) -> Node:
    return Node("batch_norm", output, (source,), NORM, {"eps": 1})


def relu(output: str, source: str) -> Node:
    return Node("relu", output, (source,))


def test_batch_norm_and_relu_fold_into_the_convolution_before() -> None:
    (step,) = fuse([conv("c", "input"), norm("n", "c"), relu("r", "n")], TENSORS).steps
    assert isinstance(step, Conv)
    assert step.weight.dense()[:, 0, 0, 0].tolist() == [1, 2]
    assert step.bias.tolist() == [0, 5]  # (1 - 1) · 1 + 0, (2 - 0) · 2 + 1
    assert (step.low, step.high) == (0, inf)


def test_batch_norm_after_a_pool_stays_with_the_pool() -> None:
    nodes = [conv("c", "input"), relu("r", "c"), Node("max_pool2d", "p", ("r",), {}, POOL), norm("n", "p")]
    first, second = fuse(nodes, TENSORS).steps
    assert isinstance(first, Conv)
    assert isinstance(second, Pool)
    assert second.affine is not None
    assert [part.tolist() for part in second.affine] == [[1, 2], [-1, 1]]


def test_nothing_folds_into_a_value_that_is_read_twice() -> None:
    nodes = [conv("c", "input"), relu("r", "c"), Node("add", "sum", ("c", "r"))]
    assert [type(step) for step in fuse(nodes, TENSORS).steps] == [Conv, Affine, Add]


def test_batch_norm_after_relu_is_a_step_of_its_own() -> None:
    steps = fuse([conv("c", "input"), relu("r", "c"), norm("n", "r")], TENSORS).steps
    assert [type(step) for step in steps] == [Conv, Affine]


def test_shapes_follow_the_steps() -> None:
    nodes = [
        conv("c", "input"),
        Node("max_pool2d", "p", ("c",), {}, POOL),
        Node("flatten", "f", ("p",), {}, {"start": 1}),
    ]
    fused = fuse(nodes, TENSORS)
    steps = fused.steps
    assert isinstance(steps[-1], Flatten)
    assert fused.shapes((2, 7, 8)) == {"input": (2, 7, 8), "c": (2, 9, 10), "p": (2, 4, 5), "f": (40, 1, 1)}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("conv3d", "x", ("input",)), "layer 'x': inference has no operation 'conv3d'. Did you mean 'conv2d'?"),
        (Node("relu", "x", ("y",)), "layer 'x' reads 'y', which no layer before it gives."),
        (Node("linear", "x", ("input",), {"weight": "v"}), "layer 'x' needs the tensor 'v'"),
        (Node("linear", "x", ("input",)), "layer 'x' (linear) lacks 'weight'"),
    ],
)
def test_what_cannot_run_is_an_error_that_names_the_layer(node: Node, message: str) -> None:
    with pytest.raises(ModelError) as error:
        fuse([node], TENSORS)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "shape", "message"),
    [
        ([conv("x", "input")], (3, 8, 8), "layer 'x': it takes 2 channels. Received: 3"),
        ([Node("max_pool2d", "x", ("input",), {}, POOL)], (3, 1, 8), "layer 'x': it needs at least 2 pixels per side"),
        ([Node("softmax", "x", ("input",), {}, {"axis": 4})], (3, 8, 8), "layer 'x': softmax runs over a dimension"),
        (
            [Node("linear", "x", ("input",), {"weight": "l"})],
            (2, 3, 3),
            "layer 'x': it takes 2 features. Received: 3",
        ),
        ([conv("c", "input"), Node("add", "x", ("c", "input"))], (2, 3, 3), "layer 'x': it adds values of shapes"),
        ([norm("x", "input")], (3, 8, 8), "layer 'x': it takes 2 channels. Received: 3"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_layer(nodes: Any, shape: Any, message: str) -> None:
    fused = fuse(nodes, TENSORS | {"l": np.ones((4, 2), np.float32)})
    with pytest.raises(ModelError) as error:
        fused.shapes(shape)
    assert message in str(error.value)


def test_an_empty_graph_is_refused() -> None:
    with pytest.raises(ModelError, match="graph is empty"):
        fuse([], {})
