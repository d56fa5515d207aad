"""The comparison of a back end with autograd before its first use: rounding passes, another network does not."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.methods import Fit
from fedsparsify.model import SparseModel
from fedsparsify.training.backends import Setup
from fedsparsify.training.backends.sparse import Sparse
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.inputs import Samples
from fedsparsify.training.native.conv.program import Program
from fedsparsify.training.native.conv.rows import CODES
from fedsparsify.training.worker import Worker

compared = importlib.import_module("fedsparsify.training.backends.choose")
CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 4, 3)),
    )


def setup() -> Setup:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3, 8, 8)).astype(np.float32), rng.integers(0, 3, 40)
    return Setup(network, Samples.on(CPU, x, y), RunConfig(batch_size=8, lr=0.01, epochs=1), CPU)


BREAKS = {
    "no gradient of a norm's scale": ("norm_back", "gradient", 0),
    "no gradient of a bias": ("weight_gradient", "bias_gradient", 0),
    "running statistics move too fast": ("norm", "momentum", 0.11),
    "a norm's variance is too large": ("norm", "eps", 0.2),
    "a row of pixels is left out of a weight's gradient": ("weight_gradient", "rows", -2),
    "a row of pixels is left out of an input's gradient": ("convolution", "rows", -2),
    "weights of another channel are used": ("permute", "x", 4),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_wrong_kernel_is_refused_even_where_decisions_count_most(name, monkeypatch):
    op, field, value = BREAKS[name]
    bind, made = Program.bind, setup()
    monkeypatch.setattr(compared, "_by_decisions", lambda *_: compared.MOST_BY_DECISIONS)
    assert compared.disagreement(Sparse(made), made) is None

    def broken(self, streams):
        bind(self, streams)
        row = np.flatnonzero(self.table["op"] == CODES[op])[0 if field == "bias_gradient" else -1]
        self.table[field][row] = self.table[field][row] + value if field in ("rows", "x") else value

    monkeypatch.setattr(Program, "bind", broken)
    assert compared.disagreement(Sparse(made), made) is not None


@pytest.mark.parametrize("near", [True, False])
def test_what_a_decision_of_a_relu_may_change_is_measured(near):
    """One unit whose input is 0, up to rounding; or far from it."""
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))
        module[0].bias.copy_(torch.tensor([0.0 if near else 0.5, 0.5]))
    flat = FlatModule(module, CPU)
    start = SparseModel.dense(flat.layout, flat.values())
    samples = Samples.on(CPU, np.ones((1, 2), np.float32), np.zeros(1, np.int64))
    training = RunConfig(batch_size=1, lr=0.1, epochs=1)

    def train(model):
        return Worker(flat, samples, np.arange(1), training, 0, 0).answer(Fit(model, epochs=1))

    decided = compared._by_decisions(start, train(start), train, np.random.default_rng(0))
    assert decided == compared.MOST_BY_DECISIONS if near else decided < 1e-4
