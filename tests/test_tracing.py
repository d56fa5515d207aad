from __future__ import annotations

import json
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedsparsify.graph import Node
from fedsparsify.networks import build
from fedsparsify.networks.replay import replay
from fedsparsify.networks.tracing import Untraceable, trace


def same(module: nn.Module, shape: tuple[int, ...]) -> tuple[Node, ...]:
    """Trace, and hold the graph against the module."""
    module.eval()
    graph = trace(module)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(replay(graph, module.state_dict(), x.clone()), module(x.clone()), rtol=0, atol=0)
    return graph


def test_a_small_network_literally():
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout(0.5), nn.ReLU())
    assert trace(module) == (
        Node("flatten", "_0", ("input",), {}, {"start": 1}),
        Node("linear", "_1", ("_0",), {"weight": "1.weight", "bias": "1.bias"}, {}),
        Node("relu", "_3", ("_1",), {}, {}),
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fc", (1, 28, 28)),
        ("cnn", (3, 32, 32)),
        ("vgg16", (3, 32, 32)),
        ("resnet18", (3, 16, 16)),
        ("resnet18-gn", (3, 16, 16)),
    ],
)
def test_our_networks(name, shape):
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


def test_other_layers_are_named():
    with pytest.raises(Untraceable, match="no graph has a LSTM"):
        trace(nn.Sequential(nn.LSTM(4, 4)))


def test_tracing_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[1].eval()
    trace(module)
    assert (module.training, module[0].training, module[1].training) == (True, True, False)


def test_operations_in_place_write_over_every_alias_literally():
    class PreActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv, self.relu = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.ReLU(inplace=True)

        def forward(self, x):
            x = self.stem(x)
            out = self.conv(self.relu(x))
            out += x
            return out

    graph = same(PreActivation(), (1, 3, 3))
    assert [(node.op, node.inputs) for node in graph] == [
        ("conv2d", ("input",)),
        ("relu", ("stem",)),
        ("conv2d", ("relu",)),
        ("add", ("conv", "relu")),  # the sum reads what the ReLU left, not the stem
    ]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda self, x: self.layer(x).mul_(2), "multiplies two values"),
        (lambda self, x: operator.imul(self.layer(x), 2), "multiplies two values"),
        (lambda self, x: [h := self.layer(x), f := h.flatten(1), F.relu_(h), f.sigmoid()][-1], "changed in place"),
        (lambda self, x: [h := self.layer(x), f := h.flatten(1), f.relu_(), h][-1], "changed in place"),
        (lambda self, x: x, "returns its input"),
    ],
)
def test_what_is_written_in_place_and_cannot_be_said(what, message):
    with pytest.raises(Untraceable, match=f"{message}.*"):
        trace(Reads(what))


@pytest.mark.parametrize(
    "what",
    [
        lambda self, x: [h := self.layer(x), F.relu(h, inplace=True), h][-1],
        lambda self, x: [h := self.layer(x), F.relu(h, True), h][-1],
        lambda self, x: [h := self.layer(x), h + h.relu_()][-1],
        lambda self, x: [h := self.layer(x), h.relu_() + h][-1],
        lambda self, x: [h := self.layer(x), g := torch.tanh(h), h.add_(g), h + g][-1],
        lambda self, x: [h := self.layer(x), g := h, operator.iadd(g, x), h][-1],
        lambda self, x: [h := F.dropout(self.layer(x), 0.5, self.training), F.leaky_relu_(h, 0.3), self.layer(h)][-1],
        lambda self, x: [h := self.layer(x), out := self.layer(h), h.relu_(), out][-1],
        lambda self, x: [x.relu_(), self.layer(x) + x][-1],
        lambda self, x: [h := self.layer(x).flatten(1), h.relu_(), h + x][-1],
    ],
)
def test_statements_in_place(what):
    same(Reads(what), (4,))
