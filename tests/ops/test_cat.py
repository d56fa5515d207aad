"""Concatenation of channels: traced, saved, exported and run."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from fedsparsify.errors import ModelError
from fedsparsify.export.onnx import write_onnx
from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.ops import reference, shapes_of


class Dense(nn.Module):
    """A small dense block (Huang et al., 2017), and two flat values concatenated."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)
        self.third, self.norm = nn.Conv2d(9, 6, 1), nn.BatchNorm2d(9)
        self.left, self.right = nn.Linear(6 * side * side, 7), nn.Linear(6 * side * side, 2)

    def forward(self, x):
        x = self.first(x)
        x = torch.cat([x, self.second(torch.relu(x))], 1)
        x = torch.relu(self.third(self.norm(x))).flatten(1)
        return torch.cat((self.left(x), self.right(x), self.left(x)), dim=1)


@pytest.mark.parametrize("side", [8, 7, 32])
@pytest.mark.parametrize("threads", [1, 2])
def test_engine_onnx_and_pytorch_agree(side, threads, tmp_path):
    torch.manual_seed(side)
    module = Dense(side).eval()
    module.norm.running_mean.uniform_(-1, 1)
    graph, model = trace(module), model_of(module)
    x = np.random.default_rng(0).standard_normal((5, 3, side, side), np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    tolerance = {"rtol": 1e-4, "atol": 1e-5 * np.abs(expected).max()}
    assert np.allclose(reference(graph, model.tensors(), x), expected, **tolerance)
    engine = Engine(model, threads, graph)
    assert np.allclose(engine.run(x), expected, **tolerance)
    assert np.allclose(engine.run(x[:1]), expected[:1], **tolerance)
    write_onnx(tmp_path / "model.onnx", model, {"shape": [3, side, side]}, graph)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert np.allclose(session.run(None, {"input": x})[0], expected, **tolerance)


def test_names_on_the_way_are_nobody_elses():
    nodes = [
        Node("flatten", "f", ("input",), {}, {"start": 1}),
        Node("linear", "c.0", ("f",), {"weight": "w"}),
        Node("linear", "c.1", ("f",), {"weight": "v"}),
        Node("cat", "c", ("c.1", "c.0")),
    ]
    layout = Layout((TensorSpec("w", (1, 2)), TensorSpec("v", (2, 2))))
    model = SparseModel.dense(layout, np.array([1, 2, 3, 4, 5, 6], np.float32))
    assert Engine(model, graph=nodes).run(np.array([[1, 1]], np.float32)).tolist() == [[7, 11, 3]]


def test_what_does_not_fit_is_named():
    cat = Node("cat", "c", ("input", "h"))
    conv = Node(
        "conv2d",
        "h",
        ("input",),
        {"weight": "w"},
        {"stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "groups": 1},
    )
    with pytest.raises(ModelError, match="layer 'c': it concatenates values of shapes"):
        shapes_of([conv, cat], {"w": (2, 3, 1, 1)}, (3, 8, 8))
    twice = Engine(model_of(nn.Linear(1, 1)), graph=[Node("cat", "c", ("input", "input"))])
    assert twice.run(np.array([[1, 2]], np.float32)).tolist() == [[1, 2, 1, 2]]


@pytest.mark.parametrize("doublings", [26, 40, 3000])
def test_channels_that_double_again_and_again_are_refused_before_they_are_stored(doublings):
    sizes = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    graph = [Node("conv2d", "0", ("input",), {"weight": "w"}, sizes)]
    graph += [Node("cat", f"{k + 1}", (f"{k}", f"{k}")) for k in range(doublings)]
    model = SparseModel.dense(Layout((TensorSpec("w", (1, 1, 1, 1)),)), np.ones(1, np.float32))
    with pytest.raises(ModelError, match=r"needs .* of memory"):
        Engine(model, graph=graph, max_memory=10**8).run(np.ones((1, 1, 2, 2), np.float32))
