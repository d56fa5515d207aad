from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedsparsify.graph import INPUT, Node
from fedsparsify.networks import build
from fedsparsify.tracing import Untraceable, graph_facts, trace

SIMPLE = {
    "relu": F.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
}


def play(graph: tuple[Node, ...], tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A graph, one torch call a node."""
    values = {INPUT: x}
    for node in graph:
        ins = [values[name] for name in node.inputs]
        t = {role: tensors[name] for role, name in node.tensors.items()}
        a = node.attributes
        match node.op:
            case "linear":
                y = F.linear(ins[0], t["weight"], t.get("bias"))
            case "conv2d":
                y = F.conv2d(ins[0], t["weight"], t.get("bias"), a["stride"], a["padding"], a["dilation"], a["groups"])
            case "batch_norm":
                y = F.batch_norm(
                    ins[0], t["running_mean"], t["running_var"], t.get("weight"), t.get("bias"), eps=a["eps"]
                )
            case "leaky_relu":
                y = F.leaky_relu(ins[0], a["slope"])
            case "max_pool2d":
                y = F.max_pool2d(ins[0], a["kernel"], a["stride"], a["padding"], ceil_mode=a["ceil"])
            case "avg_pool2d":
                y = F.avg_pool2d(ins[0], a["kernel"], a["stride"], a["padding"], a["ceil"], a["count_padding"])
            case "adaptive_avg_pool2d":
                y = F.adaptive_avg_pool2d(ins[0], a["size"])
            case "flatten":
                y = torch.flatten(ins[0], a["start"])
            case "add":
                y = ins[0] + ins[1]
            case "softmax":
                y = torch.softmax(ins[0], a["axis"])
            case op:
                y = SIMPLE[op](ins[0])
        values[node.output] = y
    return values[graph[-1].output]


def same(module: nn.Module, shape: tuple[int, ...]) -> tuple[Node, ...]:
    """Trace, and hold the graph against the module."""
    module.eval()
    graph = trace(module)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(play(graph, module.state_dict(), x), module(x), rtol=0, atol=0)
    return graph


def test_a_small_network_literally():
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout(0.5), nn.ReLU())
    assert trace(module) == (
        Node("flatten", "_0", ("input",), {}, {"start": 1}),
        Node("linear", "_1", ("_0",), {"weight": "1.weight", "bias": "1.bias"}, {}),
        Node("relu", "_3", ("_1",), {}, {}),
    )


@pytest.mark.parametrize(("name", "shape"), [("fc", (1, 28, 28)), ("cnn", (3, 32, 32)), ("vgg16", (3, 32, 32))])
def test_the_papers_networks(name, shape):
    graph = same(build(name, shape, 10, seed=1), shape)
    assert json.loads(json.dumps([node.to_json() for node in graph]))[0]["inputs"] == ["input"]


class Residual(nn.Module):
    """Functions, methods, a shared layer, a sum and an old-fashioned view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(8, affine=False)
        self.again = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, x):
        x = F.leaky_relu(self.norm(self.first(x)), negative_slope=0.2)
        x = x + F.gelu(self.again(x)).tanh()
        x = self.again(x).relu() + x
        x = F.max_pool2d(x, 2)
        x = F.avg_pool2d(F.silu(x), kernel_size=2, stride=1, count_include_pad=False)
        x = F.dropout(F.hardswish(x), 0.5, self.training)
        x = F.adaptive_avg_pool2d(x, (2, 2))
        return F.softmax(self.head(x.view(x.size(0), -1)), dim=1)


def test_functions_methods_and_shared_layers():
    graph = same(Residual(), (3, 9, 9))
    assert [node.op for node in graph].count("add") == 2
    convolutions = [node.tensors["weight"] for node in graph if node.op == "conv2d"]
    assert convolutions == ["first.weight", "again.weight", "again.weight"]


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU6(),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.SiLU(),
        nn.Hardswish(),
        nn.GELU(),
        nn.LeakyReLU(0.3),
        nn.Identity(),
        nn.MaxPool2d((2, 3), stride=1, padding=(1, 0), ceil_mode=True),
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(2),
        nn.Softmax(dim=-1),
        nn.BatchNorm2d(2),
        nn.Conv2d(2, 4, (1, 3), stride=2, dilation=2, padding="valid"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_each_layer(layer):
    same(nn.Sequential(nn.Conv2d(2, 2, 1), layer, nn.Flatten(), nn.ReLU()), (2, 8, 8))


class Reads(nn.Module):
    def __init__(self, what) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(4, 4), what

    def forward(self, x):
        return self.what(self, x)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda self, x: self.layer(x) if x.sum() > 0 else x, "cannot trace"),
        (lambda self, x: torch.cumsum(self.layer(x), 1), "cumsum"),
        (lambda self, x: self.layer(x) + self.layer.bias, "outside of a layer"),
        (lambda self, x: self.layer(x) + 1, "adds two values"),
        (lambda self, x: F.dropout(self.layer(x)), "training=self.training"),
        (lambda self, x: (self.layer(x), x), "other than one tensor"),
        (lambda self, x: F.gelu(self.layer(x), approximate="tanh"), "exact gelu"),
        (lambda self, x: self.layer(x).view(2, -1), "reshape"),
    ],
)
def test_what_a_graph_cannot_say_is_a_note_and_never_an_error_of_the_run(what, message):
    module = Reads(what)
    with pytest.raises(Untraceable, match=message):
        trace(module)
    assert message in graph_facts(module)["graph_missing"]


def test_other_layers_are_named():
    with pytest.raises(Untraceable, match="no graph has a LSTM"):
        trace(nn.Sequential(nn.LSTM(4, 4)))


def test_tracing_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[1].eval()
    trace(module)
    assert (module.training, module[0].training, module[1].training) == (True, True, False)
