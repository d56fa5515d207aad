"""Losses other than cross-entropy: literal values, and the same in every back end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.errors import ConfigError
from fedsparsify.keyed import KeyedDropout
from fedsparsify.methods import Fit, Score
from fedsparsify.networks import model_of
from fedsparsify.notices import Notice
from fedsparsify.training.backends import BACKENDS, Setup, choose
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.losses import loss_of, named_loss
from fedsparsify.training.worker import Samples, Worker

CPU = torch.device("cpu")
OUT, TRUE = torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 1.0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mse", 2.5),  # (1 + 4) / 2
        ("mae", 1.5),
        ("huber", 1.0),  # (0.5 + 1.5) / 2
        ("torch.nn.functional:l1_loss", 1.5),
        ("torch.nn:MSELoss", 2.5),
    ],
)
def test_outputs_and_targets_are_never_broadcast(name, value):
    for output, target in ((OUT, TRUE), (OUT[:, 0], TRUE[:, None]), (OUT, TRUE[:, None])):
        assert float(named_loss(name)(output, target)) == pytest.approx(value)


def test_bce_and_cross_entropy():
    assert float(named_loss("bce")(torch.zeros(2, 3), torch.ones(2, 3))) == pytest.approx(np.log(2))
    logits, y = torch.tensor([[0.0, 0.0]]), torch.tensor([1])
    assert float(named_loss("cross-entropy")(logits, y)) == pytest.approx(np.log(2))
    assert named_loss("cross-entropy") is nn.functional.cross_entropy  # nothing is put around it


def test_a_loss_must_be_a_function():
    with pytest.raises(ConfigError, match="must name a function"):
        loss_of(RunConfig(loss="math:pi"))
    with pytest.raises(ConfigError, match="there is no module 'no_such_module'"):
        loss_of(RunConfig(loss="no_such_module:f"))


def setup_of(loss: str, y: torch.Tensor, outputs: int, dropout: bool = False) -> Setup:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(len(y), 4, generator=rng)

    def make() -> nn.Module:
        torch.manual_seed(3)
        layers = [KeyedDropout(0.5, 0)] if dropout else []
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), *layers, nn.Linear(6, outputs))

    return Setup(make, Samples(x, y), RunConfig(loss=loss, epochs=2, batch_size=5, lr=0.1), CPU)


CASES = {
    "mse": (torch.randn(23, generator=torch.Generator().manual_seed(1)), 1),
    "mae": (torch.randn(23, 2, generator=torch.Generator().manual_seed(1)), 2),
    "huber": (torch.randn(23, 2, generator=torch.Generator().manual_seed(1)), 2),
    "bce": ((torch.randn(23, 3, generator=torch.Generator().manual_seed(2)) > 0).float(), 3),
    "torch.nn.functional:nll_loss": (torch.arange(23) % 3, 3),
}


@pytest.mark.parametrize("loss", CASES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["dense", pytest.param("mapped", marks=pytest.mark.slow)])
def test_stacks_minimise_any_loss_as_one_client_does(kind, loss, momentum):
    setup = setup_of(loss, *CASES[loss], dropout=momentum > 0)
    object.__setattr__(setup.training, "momentum", momentum)
    kinds = {kind.name: kind for kind in BACKENDS}
    start = model_of(setup.make())
    parts = [np.arange(11), np.arange(11, 23)]
    results = {}
    for name in ("one_by_one", kind):
        network = FlatModule(setup.make(), CPU)
        workers = [Worker(network, setup.samples, mine, setup.training, 1, i) for i, mine in enumerate(parts)]
        results[name] = kinds[name](setup).fit(workers, [Fit(start)] * 2)
    for mine, theirs in zip(results[kind], results["one_by_one"], strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-4)
        np.testing.assert_allclose(mine.model.weights, theirs.model.weights, atol=2e-6)


def test_kernels_for_cross_entropy_leave_other_losses_to_the_next_back_end():
    with pytest.warns(Notice, match="not trained by the native back end: it minimises cross-entropy, not mse"):
        assert choose(setup_of("mse", *CASES["mse"])).name == "dense"
    assert choose(setup_of("cross-entropy", torch.arange(23) % 3, 3)).name == "native"


@pytest.mark.parametrize("by", ["gradient", "hessian-gradient"])
def test_scores_are_of_the_runs_loss(by):
    """By hand: the gradient of the mean of (w·x − y)², and its Hessian times that gradient."""
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 5.0])

    def make():
        module = nn.Linear(1, 1, bias=False)
        nn.init.constant_(module.weight, 2.0)
        return module

    training = RunConfig(loss="mse")
    worker = Worker(FlatModule(make(), CPU), Samples(x, y), np.arange(2), training, 0, 0)
    update = worker.answer(Score(model_of(make()), by, temperature=200.0))
    gradient = (2 * (2 - 3) * 1 + 2 * (4 - 5) * 2) / 2
    hessian = (2 * 1 + 2 * 4) / 2
    assert update.scores.tolist() == pytest.approx([gradient if by == "gradient" else hessian * gradient])
    assert update.loss == pytest.approx(1.0)
