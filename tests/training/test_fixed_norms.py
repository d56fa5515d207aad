"""Batch norms that take the model's running statistics in the last rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig, run
from fedsparsify.data import Dataset
from fedsparsify.errors import ConfigError
from fedsparsify.methods import Fit
from fedsparsify.networks import model_of
from fedsparsify.training.backends import Setup
from fedsparsify.training.backends.autograd import OneByOne, Threads
from fedsparsify.training.backends.stacked import Mapped
from fedsparsify.training.fixed_norms import why_not_fixed
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.inputs import Samples
from fedsparsify.training.worker import Worker

CPU = torch.device("cpu")


@pytest.mark.parametrize(("share", "fixed"), [(0, []), (0.25, [4]), (0.3, [4]), (0.5, [3, 4]), (1, [1, 2, 3, 4])])
def test_the_last_rounds_are_fixed(share, fixed):
    config = RunConfig(rounds=4, fixed_norms=share)
    assert [round for round in (1, 2, 3, 4) if config.norms_fixed(round)] == fixed


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_lies_in_its_range(share):
    with pytest.raises(ConfigError, match="fixed_norms"):
        RunConfig(fixed_norms=share)


def network() -> nn.Module:
    """One value, normed by a mean of 1 and a variance of 4, is the logit of the first class of two."""
    norm, linear = nn.BatchNorm1d(1, eps=1e-9), nn.Linear(1, 2)
    with torch.no_grad():
        norm.running_mean.fill_(1.0)
        norm.running_var.fill_(4.0)
        linear.weight.copy_(torch.tensor([[1.0], [0.0]]))
        linear.bias.zero_()
    return nn.Sequential(norm, linear)


def worker(training: RunConfig, round: int) -> Worker:
    samples = Samples.on(CPU, np.array([[5.0], [9.0]], np.float32), np.array([0, 0]))
    return Worker(FlatModule(network(), CPU), samples, np.arange(2), training, round, 0)


def test_a_step_by_hand():
    training = RunConfig(rounds=2, epochs=1, batch_size=2, lr=1.0, momentum=0.0, fixed_norms=0.5)
    start = model_of(network())
    update = worker(training, 2).fit(Fit(start))
    x = np.array([2.0, 4.0])  # (5 − 1) / 2 and (9 − 1) / 2
    d = 1 / (1 + np.exp(-x)) - 1  # of the first logit
    expected = [1 - (d * x).mean(), 0 - d.mean(), 1 - (d * x).mean(), (d * x).mean(), -d.mean(), d.mean(), 1, 4]
    assert list(update.model.layout.slices) == [
        *("0.weight", "0.bias", "1.weight", "1.bias"),
        *("0.running_mean", "0.running_var"),
    ]
    assert update.model.weights == pytest.approx(expected, abs=1e-6)
    before = worker(training, 1).fit(Fit(start)).model.weights
    assert before[-2:] != pytest.approx([1, 4], abs=0.1)  # follow the batch


def test_back_ends_agree():
    rng = np.random.default_rng(0)
    samples = Samples.on(CPU, rng.normal(2.0, 3.0, (12, 3)).astype(np.float32), np.arange(12) % 2)
    training = RunConfig(rounds=2, epochs=2, batch_size=4, lr=0.1, momentum=0.5, fixed_norms=0.5)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))

    setup = Setup(make, samples, training, CPU)
    start = model_of(make())

    def trained(backend, rounds):
        workers = [
            Worker(FlatModule(make(), CPU), samples, np.arange(12), training, round, client)
            for client, round in enumerate(rounds)
        ]
        return [update.model.weights for update in backend.fit(workers, [Fit(start)] * len(rounds))]

    expected = trained(OneByOne(setup), (1, 2, 2))  # rounds of clients differ where runs of a sweep do
    for kind in (Threads, Mapped):
        backend = kind(setup)
        for _ in range(2):
            assert np.allclose(trained(backend, (1, 2, 2)), expected, atol=1e-6)
    assert np.array_equal(expected[1][-8:], start.weights[-8:])
    assert not np.allclose(expected[0][-8:], start.weights[-8:], atol=0.01)


class Own(nn.Module):
    """A norm of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(1))

    def forward(self, x):
        return x - self.running_mean


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(2, 2), "it has no batch norm"),
        (nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), "'0' (BatchNorm1d) keeps no running statistics"),
        (
            nn.Sequential(nn.BatchNorm1d(2), Own()),
            "'1' (Own) keeps running statistics, but is no batch norm of PyTorch's",
        ),
        (nn.BatchNorm1d(2), None),
    ],
    ids=["none", "without statistics", "one of a user's own", "fixed"],
)
def test_norms_that_cannot_be_fixed_are_named(module, reason):
    assert why_not_fixed(module) == reason


def test_a_network_without_batch_norms_is_refused_before_the_first_round():
    samples = np.zeros((8, 2), np.float32), np.arange(8) % 2
    config = RunConfig(clients=2, rounds=1, epochs=1, fixed_norms=0.5, network="fc", batch_size=2)
    with pytest.raises(ConfigError, match=r"fixed_norms .*'fc'.*it has no batch norm"):
        run(config, dataset=Dataset("own", *samples, *samples))
