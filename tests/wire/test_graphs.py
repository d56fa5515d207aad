from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn

from fedsparsify.errors import WireError
from fedsparsify.model import Layout, TensorSpec
from fedsparsify.networks import build, layout_of, model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.wire.artefact import load_graph, save
from fedsparsify.wire.graphs import parse_graph

LAYOUT = Layout((TensorSpec("w", (3, 2)), TensorSpec("b", (3,)), TensorSpec("odd", (4,))))


def node(
    op: str, output: str = "y", inputs: tuple[str, ...] = ("input",), tensors: Any = None, **attributes: Any
) -> Any:
    """A node as a header has it."""
    return {
        "op": op,
        "output": output,
        "inputs": list(inputs),
        "tensors": tensors or {},
        "attributes": attributes,
    }


@pytest.mark.parametrize("name", ["fc", "cnn", "vgg16", "resnet18", "resnet18-gn"])
def test_what_tracing_writes_can_be_read(name, tmp_path):
    module = build(name, (3, 32, 32), 10, seed=1)
    graph = trace(module)
    save(tmp_path / "model.fsz", model_of(module), {"graph": [n.to_json() for n in graph]})
    assert load_graph(tmp_path / "model.fsz") == graph


def test_every_operation_that_tracing_writes_has_a_rule():
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        *(nn.ReLU(), nn.ReLU6(), nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.Hardswish(), nn.GELU(), nn.LeakyReLU()),
        *(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2), nn.Softmax(1)),
    )
    graph = trace(module)
    values = json.loads(json.dumps([n.to_json() for n in graph]))
    assert parse_graph(values, layout_of(module)) == graph


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({}, "list of nodes. Received: dict"),
        ([1], "node 0 of the graph: it must have op"),
        ([node("relu") | {"more": 1}], "it must have op"),
        ([node("relu", inputs=(1,))], "it must have op"),
        ([node("eval")], "no operation 'eval'"),
        ([node("relu", "input")], "'input' is there already"),
        ([node("relu"), node("tanh")], "node 1 of the graph: its output 'y' is there already"),
        ([node("relu", inputs=("x",))], "reads 'x', which nothing before it gives"),
        ([node("relu", inputs=("input", "input"))], "Received: 2 inputs"),
        ([node("add")], "add reads 2"),
        ([node("linear")], r"linear holds weight. Received: \[\]"),
        ([node("relu", tensors={"weight": "w"})], "holds no tensors"),
        ([node("linear", tensors={"weight": "nope"})], "no tensor 'nope'"),
        ([node("linear", tensors={"weight": "b"})], "2 dimensions. Received: 'b' of shape"),
        ([node("linear", tensors={"weight": "w", "bias": "odd"})], "differ in channels"),
        ([node("flatten")], "has .'start'"),
        ([node("flatten", start=0)], "start does not fit. Received: 0"),
        ([node("flatten", start=True)], "start does not fit"),
        ([node("leaky_relu", slope=float("nan"))], "slope does not fit"),
        ([node("adaptive_avg_pool2d", size=[1])], "size does not fit"),
        ([node("max_pool2d", kernel=[2, 2], stride=[0, 2], padding=[0, 0], ceil=False)], "stride does not fit"),
    ],
)
def test_what_no_engine_should_run(nodes, message):
    with pytest.raises(WireError, match=message):
        parse_graph(nodes, LAYOUT)
