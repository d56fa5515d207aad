"""TFLite files for XNNPACK; needs litert-torch, which lives in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import save
from fedsparsify.engines import Subject, installed
from fedsparsify.export.tflite import Network, write_tflite
from fedsparsify.networks import model_of
from fedsparsify.networks.tracing import trace
from fedsparsify.wire.artefact import load, load_graph

BATCH, SHAPE = 3, (3, 8, 8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 5)),
    ).eval()
    save(tmp_path / "model.fsz", model_of(module), {"graph": [node.to_json() for node in trace(module)]})
    return tmp_path / "model.fsz"


def samples() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((BATCH, *SHAPE), np.float32)


def test_a_graph_is_a_module(model: Path) -> None:
    subject = Subject(model, model.with_suffix(".onnx"), BATCH, 1)
    network = Network(load_graph(model), load(model).tensors()).eval()
    expected = installed()["pytorch"](subject)(samples())
    np.testing.assert_array_equal(network(torch.from_numpy(samples())).numpy(), expected)
    assert not list(network.parameters())


def test_an_engine_runs_where_its_file_is(model: Path) -> None:
    subject = Subject(model, model.with_suffix(".onnx"), BATCH, 1)
    assert [name for name in ("pytorch", "onnxruntime", "xnnpack") if subject.can_run(name)] == ["pytorch"]
    subject.tflite.touch()
    assert subject.can_run("xnnpack")


def test_xnnpack_gives_the_logits_of_pytorch(model: Path) -> None:
    pytest.importorskip("litert_torch")
    subject = Subject(model, model.with_suffix(".onnx"), BATCH, 1)
    write_tflite(subject.tflite, load_graph(model), load(model).tensors(), SHAPE, BATCH)
    expected, received = (installed()[name](subject)(samples()) for name in ("pytorch", "xnnpack"))
    np.testing.assert_allclose(received, expected, atol=1e-4 * abs(expected).max())
