"""Powerpropagation and pruned inputs ≡ what autograd says of the same functions written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedsparsify import RunConfig
from fedsparsify.data import load_dataset
from fedsparsify.errors import ConfigError
from fedsparsify.federation.flower.mod import UserLoop
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import Fit
from fedsparsify.networks import model_of
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.inputs import Samples
from fedsparsify.training.pruned_inputs import PrunedInputs, smallest_kept
from fedsparsify.training.worker import Worker

CPU = torch.device("cpu")


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


def small_samples() -> Samples:
    rng = np.random.default_rng(0)
    return Samples.on(CPU, rng.normal(size=(12, 1, 4, 4)).astype(np.float32), np.arange(12) % 3)


def fitted(request: Fit, **settings):
    training = RunConfig(**{"epochs": 1, "batch_size": 4, "lr": 0.1, "momentum": 0.0, "augment": "none"} | settings)
    worker = Worker(FlatModule(small_network(), CPU), small_samples(), np.arange(12), training, 1, 0)
    order = Worker(FlatModule(small_network(), CPU), small_samples(), np.arange(12), training, 1, 0).next_order()
    return worker.fit(request), torch.from_numpy(order)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"weight_decay": 0.01, "clip_norm": 0.5}])
def test_powerpropagation_is_sgd_on_the_weights_before_the_power(settings):
    start = model_of(small_network())
    start = start.under(np.random.default_rng(1).random(start.layout.trainable) < 0.7)
    update, order = fitted(Fit(start, power=1.5), **settings)
    x, y = small_samples().x, small_samples().y
    given = {name: torch.tensor(value) for name, value in start.tensors().items()}
    roots = {name: w.sign() * w.abs() ** (1 / 1.5) if w.ndim > 1 else w.clone() for name, w in given.items()}
    leaves = [leaf.requires_grad_() for leaf in roots.values()]
    keep = [torch.from_numpy(mask) for mask in start.layout.views(start.mask).values()]
    sgd = {name: value for name, value in settings.items() if name != "clip_norm"}
    optimiser = torch.optim.SGD(leaves, lr=0.1, **sgd)

    def values():
        return {name: v.sign() * v.abs() ** 1.5 if v.ndim > 1 else v for name, v in roots.items()}

    for batch in order.split(4):
        optimiser.zero_grad()
        logits = torch.func.functional_call(small_network(), values(), (x[batch],))
        F.cross_entropy(logits, y[batch]).backward()
        for leaf, mask in zip(leaves, keep, strict=True):
            leaf.grad = torch.nan_to_num(leaf.grad) * mask  # |v|^β has no slope of its own at zero in torch
        if settings.get("clip_norm"):
            nn.utils.clip_grad_norm_(leaves, settings["clip_norm"])
        optimiser.step()
    expected = torch.cat([value.detach().ravel() for value in values().values()])
    assert update.model.weights == pytest.approx(expected.numpy(), abs=1e-6)
    assert np.array_equal(update.model.mask, start.mask)


def test_a_power_of_one_is_plain_training():
    start = model_of(small_network())
    plain, _ = fitted(Fit(start))
    assert fitted(Fit(start, power=1.0))[0].model.same_as(plain.model)
    assert not fitted(Fit(start, power=1.25))[0].model.same_as(plain.model)


def test_the_smallest_that_is_kept():
    x = torch.tensor([[3.0, -1.0], [0.5, -4.0]])
    assert [float(smallest_kept(x, share)) for share in (0.25, 0.5, 0.75, 1, 0.01)] == [4, 3, 1, 0.5, 4]


def test_a_weight_gradient_from_the_largest_inputs():
    x = torch.tensor([[1.0, -3.0, 2.0, 0.5]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.0, 4.0]], requires_grad=True)
    bias = torch.zeros(2, requires_grad=True)
    with PrunedInputs():
        output = F.linear(x, weight, bias)
    assert output.tolist() == [[5, -7]]  # of all inputs
    output.backward(torch.tensor([[1.0, 10.0]]))
    # Half of the weights are zero, so the larger half of the inputs counts: −3 and 2.
    assert weight.grad.tolist() == [[0, -3, 2, 0], [0, -30, 20, 0]]
    assert x.grad.tolist() == [[1, 30, 2, 40]]
    assert bias.grad.tolist() == [1, 10]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(2, 4, 3, padding="same", groups=2),
        nn.Conv1d(2, 3, 2),
    ],
    ids=["strided", "grouped", "one-dimensional"],
)
def test_convolutions_of_every_form(layer):
    with torch.no_grad():
        layer.weight.view(-1)[::2] = 0
    x = torch.randn(3, 2, *[6] * (layer.weight.ndim - 2), generator=torch.Generator().manual_seed(0)).requires_grad_()
    with PrunedInputs():
        output = layer(x)
        output.sum().backward()
    found, of_input = layer.weight.grad.clone(), x.grad.clone()
    assert torch.equal(output, layer(x))
    layer.weight.grad, x.grad = None, None
    layer(x).sum().backward()
    assert torch.allclose(of_input, x.grad, atol=1e-6)
    layer.weight.grad = None
    layer(torch.where(x.abs() >= smallest_kept(x.detach(), 0.5), x, 0).detach()).sum().backward()
    assert torch.allclose(found, layer.weight.grad, atol=1e-5)


def test_a_convolution_keeps_its_first_threshold_and_a_linear_layer_does_not():
    weight = torch.tensor([[[[1.0]], [[0.0]]]], requires_grad=True)
    flat = torch.tensor([[1.0, 0.0]], requires_grad=True)
    with PrunedInputs():
        for x in (torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 2.0]])):
            weight.grad = flat.grad = None
            F.conv2d(x.view(1, 2, 1, 1), weight).sum().backward()
            F.linear(x, flat).sum().backward()
    assert weight.grad.flatten().tolist() == [0, 0]  # below the first batch's 3
    assert flat.grad.tolist() == [[0, 2]]


def test_dense_layers_and_evaluation_are_left_alone():
    layer, x = nn.Linear(3, 2), torch.ones(1, 3)
    with PrunedInputs(), torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    with PrunedInputs():
        assert "Hidden" not in str(layer(x).grad_fn)


def test_back_ends_that_lack_the_step_are_passed_over():
    """A sweep may train plain requests and such beside each other."""
    config = RunConfig(method="sparsyfed", rounds=2, epochs=1, clients=4)
    federation = Simulated(config, load_dataset("digits"))
    start, cohort = federation.initial(), federation.environment
    workers = [federation._worker(1, client, start) for client in range(3)]
    requests = [Fit(start, power=1.25), Fit(start), Fit(start, prune_inputs=True)]
    together = cohort.fit(workers, requests)
    for client, request in enumerate(requests):
        alone = federation._worker(1, client, start).fit(request)
        assert together[client].model.weights == pytest.approx(alone.model.weights, abs=1e-5)


def test_a_loop_of_the_users_own_refuses_the_step():
    start = model_of(small_network())
    with pytest.raises(ConfigError, match=r"Fit.power, Fit.prune_inputs"):
        UserLoop.__new__(UserLoop)._fit(Fit(start, power=1.25))
