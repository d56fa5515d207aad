"""Files and batches that say what no network means: always an error of ours, never another, never a signal."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsparsify.errors import FedSparsifyError, ModelError
from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.wire.artefact import save
from fedsparsify.wire.graphs import MAX_NODES

CONV = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
POOL = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil": False}
IMAGES, ROWS = (2, 8, 8), (8,)
LARGEST = (1 << 31) - 1


def conv(*shape: int, **attributes: Any) -> tuple[dict[str, Any], list[Any]]:
    return {"w": shape}, [Node("conv2d", "y", ("input",), {"weight": "w"}, CONV | attributes)]


def pool(op: str = "max_pool2d", **attributes: Any) -> tuple[dict[str, Any], list[Any]]:
    given = POOL | ({"count_padding": True} if op == "avg_pool2d" else {}) | attributes
    return {}, [Node(op, "y", ("input",), {}, given)]


def norm(channels: int, *before: Node, **tensors: tuple[int, ...]) -> tuple[dict[str, Any], list[Any]]:
    names = {"running_mean": "mean", "running_var": "variance"}
    source = before[-1].output if before else "input"
    node = Node("batch_norm", "y", (source,), names, {"eps": 1e-5})
    return {"mean": (channels,), "variance": (channels,), **tensors}, [*before, node]


def alone(op: str, **attributes: Any) -> tuple[dict[str, Any], list[Any]]:
    return {}, [Node(op, "y", ("input",), {}, attributes)]


def eps(value: Any) -> tuple[dict[str, Any], list[Any]]:
    tensors, (node,) = norm(2)
    return tensors, [Node(node.op, node.output, node.inputs, node.tensors, {"eps": value})]


def flat_then(*nodes: Node, **tensors: tuple[int, ...]) -> tuple[dict[str, Any], list[Any]]:
    return tensors, [Node("flatten", "f", ("input",), {}, {"start": 1}), *nodes]


FIRST = Node("conv2d", "c", ("input",), {"weight": "w"}, CONV)
LINEAR = Node("linear", "l", ("input",), {"weight": "w"})
LONG = "n" * 10**6
CASES: list[tuple[Any, tuple[int, ...], str]] = [
    (conv(3, 2, 0, 3), IMAGES, "its weight is empty"),
    (conv(0, 2, 3, 3), IMAGES, "its weight is empty"),
    (conv(3, 0, 3, 3), IMAGES, "its weight is empty"),
    (conv(3, 2), IMAGES, "must have 4 dimensions"),
    (conv(3, 2, 1, 1, dilation=[0, 1]), IMAGES, "dilation does not fit"),
    (conv(3, 2, 1, 1, stride=[1, 0]), IMAGES, "stride does not fit"),
    (conv(3, 2, 1, 1, stride=[1.0, 1]), IMAGES, "stride does not fit"),
    (conv(3, 2, 1, 1, stride=[True, 1]), IMAGES, "stride does not fit"),
    (conv(3, 2, 1, 1, stride=1), IMAGES, "stride does not fit"),
    (conv(3, 2, 1, 1, stride="11"), IMAGES, "stride does not fit"),
    (conv(3, 2, 1, 1, stride=[10**400, 1]), IMAGES, "stride does not fit"),
    (conv(3, 2, 1, 1, padding=[-1, 0]), IMAGES, "padding does not fit"),
    (conv(3, 2, 1, 1, groups=2), IMAGES, "divides 3 channels into 2 groups"),
    (conv(4, 2, 1, 1, groups=4), IMAGES, "takes 8 channels. Received: 2"),
    (conv(3, 2, 1, 1, groups=0), IMAGES, "groups does not fit"),
    (conv(3, 2, 9, 9), IMAGES, "needs at least 9 pixels"),
    (conv(3, 2, 1, 1), (2, 0, 8), "a sample is"),
    (conv(3, 2, 1, 1), (2, 8, 0), "a sample is"),
    (conv(3, 8, 3, 3, padding=[1, 1]), ROWS, "takes images"),
    (conv(3, 2, 1, 1, padding=[LARGEST, LARGEST]), IMAGES, "of memory"),
    (conv(3, 2, 3, 3, padding=[LARGEST] * 2, dilation=[LARGEST] * 2, stride=[LARGEST] * 2), IMAGES, "32 bits"),
    (alone("adaptive_avg_pool2d", size=[50_000, 50_000]), IMAGES, "needs 20.0 GB of memory"),
    (alone("adaptive_avg_pool2d", size=[LARGEST, LARGEST]), IMAGES, "EB of memory"),
    (alone("adaptive_avg_pool2d", size=[0, 1]), IMAGES, "size does not fit"),
    (alone("adaptive_avg_pool2d", size=[1, 1]), ROWS, "takes images"),
    (pool(padding=[2, 0]), IMAGES, "more than half of its kernel"),
    (pool("avg_pool2d", padding=[0, 2]), IMAGES, "more than half of its kernel"),
    (pool(kernel=[0, 2]), IMAGES, "kernel does not fit"),
    (pool(kernel=[9, 9]), IMAGES, "needs at least 9 pixels"),
    (pool(stride=[0, 2]), IMAGES, "stride does not fit"),
    (pool(ceil=1), IMAGES, "ceil does not fit"),
    (pool(kernel=[1, 1]), ROWS, "takes images"),
    (norm(3), IMAGES, "takes 3 channels. Received: 2"),
    (norm(1, FIRST, w=(3, 2, 1, 1)), IMAGES, "takes 1 channels. Received: 3"),
    (norm(1, FIRST, Node("tanh", "t", ("c",)), w=(3, 2, 1, 1)), IMAGES, "takes 1 channels. Received: 3"),
    (norm(1, LINEAR, w=(3, 8)), ROWS, "takes 1 channels. Received: 3"),
    (norm(5, LINEAR, w=(3, 8)), ROWS, "takes 5 channels. Received: 3"),
    *((eps(value), IMAGES, "eps does not fit") for value in (inf, nan, -1, 10**400, 1e39, "1", True, None, [1])),
    (alone("leaky_relu", slope=10**400), IMAGES, "slope does not fit"),
    (alone("leaky_relu", slope=-inf), IMAGES, "slope does not fit"),
    (alone("softmax", axis=5), IMAGES, "softmax runs over a dimension"),
    (alone("softmax", axis=0.5), IMAGES, "axis does not fit"),
    (alone("flatten", start=10**400), IMAGES, "start does not fit"),
    (flat_then(Node("linear", "y", ("f",), {"weight": "w"}), w=(3, 5)), IMAGES, "takes 5"),
    (flat_then(Node("conv2d", "y", ("f",), {"weight": "w"}, CONV), w=(3, 128, 1, 1)), IMAGES, "takes images"),
    (flat_then(Node("add", "y", ("f", "input"))), (8, 1, 1), "it adds values of shapes"),
    (({"w": (3, 7)}, [Node("linear", "y", ("input",), {"weight": "w"})]), IMAGES, "takes 7 features"),
    (({}, [Node("relu", "a", ("b",)), Node("relu", "b", ("input",))]), IMAGES, "reads 'b', which nothing before"),
    (({}, [Node("relu", "a", ("a",))]), IMAGES, "reads 'a', which nothing before"),
    (({}, [Node("relu", "a", ("input",)), Node("tanh", "a", ("a",))]), IMAGES, "there already"),
    (({}, [Node("relu", "a", ("input",) * 10**5)]), IMAGES, "relu reads 1"),
    (
        ({}, [Node("tanh", f"{k}", (f"{k - 1}" if k else "input",)) for k in range(MAX_NODES + 1)]),
        IMAGES,
        "at most 4,096",
    ),
    *(
        (({}, [Node(op, output, (source,), tensors, attributes)]), IMAGES, said)
        for op, output, source, tensors, attributes, said in (
            (LONG, "y", "input", {}, {}, "a name has at most"),
            ("relu", LONG, "input", {}, {}, "a name has at most"),
            ("relu", "y", LONG, {}, {}, "a name has at most"),
            ("linear", "y", "input", {"weight": LONG}, {}, "a name has at most"),
            ("linear", "y", "input", {LONG: "w"}, {}, "linear holds weight"),
            ("relu", "y", "input", {}, {LONG: 1}, "relu has"),
            ("leaky_relu", "y", "input", {}, {"slope": LONG}, "slope does not fit"),
        )
    ),
]


def model_of(shapes: dict[str, tuple[int, ...]]) -> SparseModel:
    specs = [TensorSpec(name, shape) for name, shape in shapes.items()]
    trained, statistics = (tuple(s for s in specs if (s.name == "w") is wanted) for wanted in (True, False))
    layout = Layout(trained, statistics)
    return SparseModel.dense(layout, np.ones(layout.total, np.float32))


@pytest.mark.parametrize(("network", "sample", "said"), CASES, ids=range(len(CASES)))
def test_hostile_graphs(network: Any, sample: tuple[int, ...], said: str, tmp_path: Path) -> None:
    """From a file, and given by hand; messages stay short."""
    model, graph = model_of(network[0]), network[1]
    save(tmp_path / "model.fsz", model, {"graph": [node.to_json() for node in graph]})
    for given in ((tmp_path / "model.fsz", 1), (model, 1, graph)):
        with pytest.raises(FedSparsifyError, match=said) as error:
            Engine(*given, max_memory=10**9).run(np.zeros((2, *sample), np.float32))
        assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_a_network_of_many_nodes() -> None:
    """Folded nodes, pools that pad, values that many read: each once looked through all other nodes."""
    padded = POOL | {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1]}
    graph = [Node("tanh", "0", ("input",))]
    for k in range(1, 999):
        graph.append(
            Node("max_pool2d" if k % 2 else "relu", f"{k}", (f"{k - 1 if k % 3 else 0}",), {}, padded if k % 2 else {})
        )
    made = Engine(model_of({}), 1, graph).run(np.ones((1, 1, 4, 4), np.float32))
    np.testing.assert_allclose(made, np.tanh(np.ones((1, 1, 4, 4), np.float32)), rtol=1e-6)


def test_a_name_that_the_engine_would_make_up_is_free(tmp_path: Path) -> None:
    """A pool whose input others read gets a copy of it, which must not take the name of another value."""
    padded = POOL | {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1]}
    graph = (
        Node("flatten", "p.input", ("input",), {}, {"start": 1}),
        Node("tanh", "t", ("input",)),
        Node("max_pool2d", "p", ("t",), {}, padded),
        Node("add", "y", ("p", "t")),
    )
    made = Engine(model_of({}), 1, graph).run(np.full((1, 1, 3, 3), -1.0, np.float32))
    np.testing.assert_allclose(made, np.full((1, 1, 3, 3), 2 * np.tanh(-1.0)), rtol=1e-6)


def test_variances_that_have_no_root_are_refused() -> None:
    shapes, graph = norm(2)
    model = model_of(shapes)
    for value in (-1, nan):
        weights = np.array([0, 0, 1, value], np.float32)
        with pytest.raises(ModelError, match="layer 'y': variance and eps must have a positive sum"):
            Engine(SparseModel(model.layout, weights, model.mask), 1, graph)


X = np.ones((2, 2, 8, 8), np.float32)
BATCHES: list[tuple[Any, str]] = [
    (X.astype(complex), "real numbers. Received: an array of complex128"),
    (X.astype(str), "real numbers. Received: an array of <U"),
    (X.astype(object), "real numbers. Received: an array of object"),
    (X.astype("M8[s]"), "real numbers. Received: an array of datetime64"),
    (np.zeros(X.shape, [("a", np.float32)]), "real numbers"),
    ([[1, 2], [3]], "one array of numbers"),
    ([[10**400]], "real numbers"),
    ([[[["a"]]]], "real numbers"),
    (None, "real numbers"),
    ({}, "real numbers"),
    (3.0, "a dimension for the images"),
    (np.ma.masked_array(X, X > 0), "without masked values"),
    (np.ones((2, 2, 8)), "takes images"),
    (np.ones((2, 3, 8, 8)), "takes 2 channels. Received: 3"),
]


@pytest.mark.parametrize(("batch", "said"), BATCHES, ids=range(len(BATCHES)))
def test_hostile_batches(batch: Any, said: str) -> None:
    shapes, graph = conv(3, 2, 1, 1)
    with pytest.raises(ModelError, match=said):
        Engine(model_of(shapes), 1, graph).run(batch)


def test_batches_of_other_kinds_are_converted() -> None:
    shapes, graph = conv(3, 2, 1, 1)
    engine = Engine(model_of(shapes), 1, graph)
    values = np.arange(X.size).reshape(X.shape) % 7
    expected = engine.run(values.astype(np.float32))
    shifted = np.frombuffer(b"\0" + values.astype(np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    kinds = [values.astype(kind) for kind in (np.float16, np.float64, np.int64, np.uint8, ">f4")]
    for batch in (*kinds, np.asfortranarray(values.astype(np.float32)), values.tolist(), shifted.reshape(X.shape)):
        assert np.array_equal(engine.run(batch), expected)
    assert np.array_equal(engine.run(values.astype(np.float32)[::-1]), expected[::-1])
