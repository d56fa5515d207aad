"""SNIP and GraSP on a network of six entries, worked out by hand.

z = W x + b with W = [[1, 1], [5, −1]], b = 0, x = (1, 2), label 0: z = (3, 3), so p = (½, ½) and p − e = (−½, ½).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig, run
from fedsparsify.data import load_dataset
from fedsparsify.errors import ConfigError
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import Fit, Grasp, Snip
from fedsparsify.networks import model_of
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.worker import Samples, Worker

RNG = np.random.default_rng(0)


def linear() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].weight.data = torch.tensor([[1.0, 1.0], [5.0, -1.0]])
    module[0].bias.data.zero_()
    return module


def round_0(method):
    """Both halves, and what the client sent."""
    start = model_of(linear())
    data = Samples(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    worker = Worker(FlatModule(linear(), torch.device("cpu")), data, np.arange(1), RunConfig(), round=0, client=0)
    update = worker.run(method.client(0, start))
    return update, method.merge(0, start, iter([update]), RNG)


def test_snip():
    # g = (p − e) xᵀ = [[−½, −1], [½, 1]] and p − e for the biases; |g ⊙ w| = [[½, 1], [2½, 1]] and 0 for the biases.
    update, pruned = round_0(Snip(sparsity=0.4))
    assert update.scores == pytest.approx([0.5, 1, 2.5, 1, 0, 0])
    assert pruned.mask.tolist() == [
        False,
        True,
        True,
        False,
        True,
        True,
    ]  # int(2.4) = 2 go; the lower of two equals stays
    assert pruned.weights.tolist() == [0, 1, 5, 0, 0, 0]  # the very weights that were scored
    assert round_0(Snip(sparsity=0.5))[1].mask.tolist() == [False, False, True, False, True, True]


def test_grasp():
    # In logits, H = diag p − p pᵀ = ¼ [[1, −1], [−1, 1]] and H (p − e) = (−¼, ¼). With x̃ = (1, 2, 1), |x̃|² = 6:
    # H g = 6 (−¼, ¼) ⊗ x̃ = [[−1½, −3], [1½, 3]], biases (−1½, 1½). w ⊙ H g = [[−1½, −3], [7½, −3]].
    update, pruned = round_0(Grasp(sparsity=0.2, temperature=1.0))
    assert update.scores == pytest.approx([-1.5, -3, 7.5, -3, 0, 0])
    assert pruned.mask.tolist() == [True, True, True, False, True, True]  # −w ⊙ H g = 3 is the highest
    warm = round_0(Grasp(sparsity=0.2))[0].scores  # each derivative divides by 200, and there are three
    assert warm * 200**3 == pytest.approx([-1.5, -3, 7.5, -3, 0, 0])


def test_what_is_not_a_kernel_goes_last():
    assert round_0(Snip(sparsity=0.7))[1].mask.tolist() == [False] * 4 + [True, True]
    assert round_0(Snip(sparsity=0.84))[1].mask.tolist() == [False] * 4 + [True, False]  # the count is exact even so


def test_only_scores_and_statistics_travel_in_round_0():
    update, _ = round_0(Snip())
    assert update.params == np.count_nonzero(update.scores) == 4  # of six; the biases have none
    assert not update.model.mask.any()


@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_all_clients_scores_are_averaged_by_samples(name):
    config = RunConfig(method={"name": name, "probe": "all"}, clients=3, split="dirichlet:1.0", participation=0.34)
    federation = Simulated(config, load_dataset("digits"))
    start = federation.initial()
    updates = list(federation.ask(config.method, 0, start))
    assert [update.client for update in updates] == [0, 1, 2]
    mean = np.average([u.scores for u in updates], axis=0, weights=[u.samples for u in updates])
    mask = config.method.merge(0, start, iter(updates), RNG).mask
    places = [start.layout.slices[s.name] for s in start.layout.tensors if len(s.shape) > 1]
    kept = np.concatenate([mean[p][mask[p]] for p in places])
    gone = np.concatenate([mean[p][~mask[p]] for p in places])
    assert kept.min() >= gone.max() - 1e-12
    assert all(mask[start.layout.slices[s.name]].all() for s in start.layout.tensors if len(s.shape) == 1)


@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_one_client_scores_the_very_initialisation_that_is_trained(name):
    config = RunConfig(method=name, clients=4, rounds=1, epochs=1)
    federation = Simulated(config, load_dataset("digits"))
    start = federation.initial()
    [update] = federation.ask(config.method, 0, start)
    masked = config.method.merge(0, start, iter([update]), RNG)
    assert masked.same_as(start.under(masked.mask))
    result = run(config)
    assert np.array_equal(result.model.mask, masked.mask)
    assert [(entry.round, entry.clients) for entry in result.history] == [(0, 1), (1, 4)]


def test_killed_between_the_line_of_round_0_and_its_checkpoint(tmp_path):
    config = RunConfig(method="snip", clients=4, rounds=2, epochs=1)
    whole = run(config, tmp_path / "whole")

    def interrupt(entry):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", on_round=interrupt)
    (tmp_path / "cut" / "checkpoint.fsz").unlink()
    with pytest.warns(UserWarning, match="no checkpoint yet"):
        resumed = run(config, tmp_path / "cut", resume=True)
    assert resumed.model.same_as(whole.model)
    assert [entry.round for entry in resumed.history] == [0, 1, 2]


def test_after_round_0_clients_fit():
    assert isinstance(next(Snip().client(1, model_of(linear()))), Fit)


def test_mistakes():
    for settings, says in (
        ({"name": "snip", "probe": "server"}, "one of client, all"),
        ({"name": "snip", "per_class": 0}, "at least 1"),
        ({"name": "snip", "sparsity": 95}, "Did you mean 0.95"),
        ({"name": "grasp", "temperature": 0}, "positive"),
    ):
        with pytest.raises(ConfigError, match=says):
            RunConfig(method=settings)
