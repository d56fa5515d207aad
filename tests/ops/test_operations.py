"""Every operation by itself: its shape and its numpy reference are held to PyTorch."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import small_model
from torch.nn import functional

from fedsparsify.errors import ModelError
from fedsparsify.export.onnx import write_onnx
from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.ops import ACTIVATIONS, OPERATIONS, reference, shapes_of
from fedsparsify.ops.constant import attributes_of

PICTURE, ROW = (6, 9, 8), (12,)


def window(kernel=(3, 2), stride=(2, 2), padding=(1, 0), ceil=False, **more):
    return {"kernel": [*kernel], "stride": [*stride], "padding": [*padding], "ceil": ceil, **more}


def conv(stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    return {"stride": [*stride], "padding": [*padding], "dilation": [*dilation], "groups": groups}


def transposed(stride, padding, output_padding, groups=1):
    return {"stride": [*stride], "padding": [*padding], "output_padding": [*output_padding], "groups": groups}


NORM = {"running_mean": (6,), "running_var": (6,), "weight": (6,), "bias": (6,)}
# operation, sample, tensors by role, attributes
CASES = [
    *(
        (name, PICTURE, {}, {})
        for name in ("relu", "relu6", "sigmoid", "tanh", "silu", "hardswish", "hardsigmoid", "gelu", "mish", "softplus")
    ),
    ("leaky_relu", PICTURE, {}, {"slope": 0.3}),
    ("linear", ROW, {"weight": (5, 12), "bias": (5,)}, {}),
    ("linear", (3, 12), {"weight": (5, 12)}, {}),
    ("conv2d", PICTURE, {"weight": (4, 6, 3, 3), "bias": (4,)}, conv(padding=(1, 1))),
    ("conv2d", PICTURE, {"weight": (6, 2, 1, 3)}, conv((2, 1), (0, 2), (1, 2), groups=3)),
    ("conv2d", PICTURE, {"weight": (6, 1, 2, 2), "bias": (6,)}, conv((3, 2), groups=6)),
    ("conv_transpose2d", PICTURE, {"weight": (6, 4, 3, 3), "bias": (4,)}, transposed((2, 2), (1, 1), (1, 1))),
    ("conv_transpose2d", PICTURE, {"weight": (6, 2, 2, 5)}, transposed((1, 3), (1, 2), (0, 2), groups=3)),
    ("batch_norm", PICTURE, NORM, {"eps": 1e-3}),
    ("batch_norm", (6,), {role: NORM[role] for role in ("running_mean", "running_var")}, {"eps": 1e-5}),
    ("max_pool2d", PICTURE, {}, window()),
    ("max_pool2d", PICTURE, {}, window((2, 2), (2, 2), (0, 0))),
    ("max_pool2d", PICTURE, {}, window((3, 3), (2, 3), (1, 1), True)),
    ("max_pool2d", PICTURE, {}, window((2, 2), (3, 3), (1, 1), True)),
    ("avg_pool2d", PICTURE, {}, window(count_padding=True)),
    ("avg_pool2d", PICTURE, {}, window(count_padding=False)),
    ("avg_pool2d", PICTURE, {}, window((3, 3), (2, 2), (1, 1), True, count_padding=True)),
    ("avg_pool2d", PICTURE, {}, window((4, 3), (3, 2), (2, 1), True, count_padding=False)),
    ("adaptive_avg_pool2d", PICTURE, {}, {"size": [1, 1]}),
    ("adaptive_avg_pool2d", PICTURE, {}, {"size": [4, 5]}),
    ("flatten", PICTURE, {}, {"start": 1}),
    ("flatten", PICTURE, {}, {"start": 2}),
    ("add", PICTURE, {}, {}),
    ("cat", PICTURE, {}, {"axis": 1}),
    ("cat", PICTURE, {}, {"axis": 3}),
    ("cat", ROW, {}, {"axis": 1}),
    ("mul", PICTURE, {}, {}),
    ("clamp", PICTURE, {}, {"low": -1.5, "high": None}),
    ("elu", PICTURE, {}, {"slope": 0.7}),
    ("sqrt", ROW, {}, {}),
    ("log", ROW, {}, {}),
    ("exp", ROW, {}, {}),
    ("reciprocal", ROW, {}, {}),
    ("prelu", PICTURE, {"weight": (6,)}, {}),
    ("prelu", ROW, {"weight": (1,)}, {}),
    ("conv1d", (6, 9), {"weight": (4, 3, 3), "bias": (4,)}, {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
    ("layer_norm", PICTURE, {"weight": (8,), "bias": (8,)}, {"axes": 1, "eps": 1e-5}),
    ("layer_norm", PICTURE, {}, {"axes": 2, "eps": 1e-3}),
    ("group_norm", PICTURE, {"weight": (6,), "bias": (6,)}, {"groups": 3, "eps": 1e-5}),
    ("group_norm", ROW, {}, {"groups": 2, "eps": 1e-5}),
    ("mean", PICTURE, {}, {"axes": [1, 3]}),
    ("matmul", (2, 4, 4), {}, {}),
    ("permute", PICTURE, {}, {"order": [2, 3, 1]}),
    ("reshape", PICTURE, {}, {"start": 2, "end": 3, "sizes": [3, 3]}),
    ("reshape", (6, 1, 8), {}, {"start": 2, "end": 3, "sizes": []}),
    ("slice", PICTURE, {}, {"axis": 2, "start": 1, "stop": 8, "step": 3}),
    ("pad", PICTURE, {}, {"before": [0, 1, 2], "after": [1, 0, 3], "value": -1.5}),
    ("take", PICTURE, {}, {"axis": 2, "numbers": [3, 3, 0, 8]}),
    ("parameter", PICTURE, {"value": (3, 2)}, {}),
    ("constant", PICTURE, {}, attributes_of(np.arange(6.0).reshape(2, 3))),
    ("softmax", PICTURE, {}, {"axis": 1}),
    ("softmax", PICTURE, {}, {"axis": -1}),
]


@pytest.mark.parametrize(("name", "sample", "roles", "attributes"), CASES)
def test_shape_and_reference_are_pytorchs(name, sample, roles, attributes):
    operation, rng = OPERATIONS[name], np.random.default_rng(7)
    count = 3 if operation.inputs is None else operation.inputs
    tensors = {role: rng.uniform(0.2, 1.5, shape).astype(np.float32) for role, shape in roles.items()}
    x = [(3 * rng.standard_normal((2, *sample))).astype(np.float32) for _ in range(count)]
    node = Node(name, "out", ("input",) * count, {role: role for role in roles}, attributes)
    assert operation.attributes.keys() == attributes.keys()
    assert all(fits(attributes[key]) for key, fits in operation.attributes.items())
    operation.check(node, roles)
    expected = operation.torch(
        functional, list(map(torch.from_numpy, x)), {r: torch.from_numpy(t) for r, t in tensors.items()}, attributes
    ).numpy()
    assert shapes_of([node], roles, sample)["out"] == expected.shape[1:]
    received = operation.reference(x, tensors, attributes)
    assert received.dtype == np.float32
    limits = {"rtol": 1e-5, "atol": 1e-5 * np.nanmax(np.abs(expected)), "equal_nan": True}
    assert np.allclose(received, expected, **limits)
    unknown = operation.shape(node, [None] * count, roles)
    known = expected.shape[1:]
    assert unknown is None or all(a in (None, b) for a, b in zip(unknown, known, strict=True))


def test_every_operation_has_a_case():
    assert {name for name, *_ in CASES} == {op.name for op in OPERATIONS.values() if not op.vanishes}


@pytest.mark.parametrize(
    ("node", "tensors", "sample", "message"),
    [
        (
            Node("linear", "a", ("input",), {"weight": "w"}),
            {"w": (3, 5)},
            (4,),
            "layer 'a': it takes 5 features. Received: 4",
        ),
        (Node("conv2d", "a", ("input",), {"weight": "w"}, conv()), {"w": (3, 2, 3, 3)}, (2, 2, 5), "at least 3 pixels"),
        (Node("conv2d", "a", ("input",), {"weight": "w"}, conv()), {"w": (3, 2, 3, 3)}, (5,), "takes images"),
        (
            Node("conv_transpose2d", "a", ("input",), {"weight": "w"}, transposed((1, 1), (3, 0), (0, 0))),
            {"w": (2, 3, 3, 3)},
            (2, 4, 4),
            "cuts off 3 pixels on both sides",
        ),
        (Node("max_pool2d", "a", ("input",), {}, window()), {}, (7,), "takes images"),
        (Node("flatten", "a", ("input",), {}, {"start": 3}), {}, (7,), "flattens from dimension 3"),
    ],
)
def test_what_does_not_fit_names_its_layer(node, tensors, sample, message):
    with pytest.raises(ModelError, match=message):
        shapes_of([node], tensors, sample)


def test_a_graph_in_numpy_literally():
    graph = [
        Node("linear", "h", ("input",), {"weight": "w", "bias": "b"}),
        Node("relu", "r", ("h",)),
        Node("add", "out", ("r", "input")),
    ]
    tensors = {"w": np.array([[1, -1], [0, 2]], np.float32), "b": np.array([0, 1], np.float32)}
    assert reference(graph, tensors, np.array([[1, 3]], np.float32)).tolist() == [[1, 10]]


@pytest.mark.parametrize("operation", ACTIVATIONS, ids=lambda operation: operation.name)
def test_the_engine_and_onnx_compute_every_activation(operation, tmp_path):
    attributes = {"slope": 0.3} if operation.name in ("leaky_relu", "elu") else {}
    graph = [Node("flatten", "f", ("input",), {}, {"start": 1}), Node(operation.name, "y", ("f",), {}, attributes)]
    x = np.linspace(0.1 if operation.name in ("sqrt", "log") else -9, 9, 64, dtype=np.float32).reshape(4, 1, 4, 4)
    expected = reference(graph, {}, x)
    model = small_model([1.0])
    assert np.allclose(Engine(model, graph=graph).run(x), expected, rtol=2e-6, atol=2e-6)
    write_onnx(tmp_path / "model.onnx", model, {"shape": [1, 4, 4]}, graph)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert np.allclose(session.run(None, {"input": x})[0], expected, rtol=1e-5, atol=1e-5)
