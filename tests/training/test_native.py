"""The CPU's kernels for perceptrons ≡ the same training written down in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import every_width
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sgd_reference import Rule, sgd_step
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.data import load_dataset
from fedsparsify.errors import ModelError
from fedsparsify.federation.simulated import Simulated
from fedsparsify.methods import Fit, Score
from fedsparsify.networks import layout_of, model_of
from fedsparsify.training.backends import base
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.native.layers import Linear, Workspace
from fedsparsify.training.native.perceptrons import Perceptrons, read_perceptron
from fedsparsify.training.sequence import in_sequence
from fedsparsify.training.worker import Samples, Worker


def network(sizes, biased, bent) -> nn.Sequential:
    """Linear layers between the sizes, some with a bias, some with a ReLU after them."""
    layers: list[nn.Module] = [nn.Flatten()]
    relu = nn.ReLU()  # one for all, as many write it
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs, bias=bool(biased[k])))
        layers += [relu] if bent[k] and k < len(sizes) - 2 else []
    return nn.Sequential(*layers)


def in_doubles(module, model, x, y, orders, training, prox, linear, velocity):
    """Weights, last losses' mean, velocity, summed squares, and how near to a ReLU's kink a sample came."""
    values = model.weights.astype(np.float64)
    start, squares, velocity, nearest = values.copy(), np.zeros_like(values), velocity.astype(np.float64), np.inf
    rule = Rule(training.lr, training.momentum, training.nesterov, prox, training.weight_decay)
    steps = len(orders) * -(-len(orders[0]) // training.batch_size)
    smoothing, rates = training.label_smoothing, iter(training.rates(1, steps))
    parts = model.layout.views(values)
    for order in orders:
        losses = []
        for first in range(0, len(order), training.batch_size):
            rows = order[first : first + training.batch_size]
            h, tape = x[rows].astype(np.float64), []
            for name, layer in in_sequence(module):
                if isinstance(layer, nn.Linear):
                    tape.append((name, h))
                    h = h @ parts[f"{name}.weight"].T + parts.get(f"{name}.bias", 0)
                elif isinstance(layer, nn.ReLU):
                    nearest = min(nearest, np.abs(h).min())
                    h = np.maximum(h, 0)
                    tape.append(("", h))
            d = np.exp(h - h.max(1, keepdims=True))
            d /= d.sum(1, keepdims=True)
            target = np.full_like(d, smoothing / d.shape[1])
            target[np.arange(len(rows)), y[rows]] += 1 - smoothing
            losses += list(-(target * np.log(d)).sum(1))
            d -= target
            d /= len(rows)
            gradient = np.zeros_like(values)
            into = model.layout.views(gradient)
            for name, before in reversed(tape):
                if name:
                    into[f"{name}.weight"][:] = d.T @ before
                    if f"{name}.bias" in into:
                        into[f"{name}.bias"][:] = d.sum(0)
                    d = d @ parts[f"{name}.weight"]
                else:
                    d = d * (before > 0)
            now = replace(rule, lr=next(rates))
            values[:], velocity, squared = sgd_step(values, gradient, velocity, start, model.mask, now, linear)
            squares += squared
    return values, float(np.mean(losses)), velocity, squares, nearest


@every_width
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=2, max_size=4).map(lambda sizes: [*sizes[:-1], max(2, sizes[-1])]),
    flags=st.integers(0, 2**9 - 1),
    batch=st.integers(1, 9),
    count=st.integers(1, 20),
    kept=st.sampled_from([1.0, 0.5, 0.05]),
    momentum=st.sampled_from([0.0, 0.0, 0.5]),
    prox=st.sampled_from([0.0, 0.0, 0.3]),
    seed=st.integers(0, 2**16),
)
def test_any_perceptron_at_any_width(lanes, sizes, flags, batch, count, kept, momentum, prox, seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    module = network(sizes, [flags >> k & 1 for k in range(3)], [flags >> k & 2 for k in range(3)])
    more: dict = {"keep_optimizer": True} | ({"weight_decay": 0.1} if flags & 32 else {})
    more |= {"label_smoothing": 0.2} if flags & 64 else {}
    more |= {"lr_schedule_local": "linear", "lr_final_local": 0.3} if flags & 128 else {}
    training = RunConfig(batch_size=batch, lr=0.1, epochs=2, momentum=momentum, nesterov=bool(flags & 8), **more)
    x = rng.normal(size=(40, sizes[0])).astype(np.float32)
    y = rng.integers(0, sizes[-1], 40)
    samples, mine = Samples.on(torch.device("cpu"), x, y), rng.permutation(40)[:count]
    model = model_of(module)
    model = model.under(rng.random(model.layout.trainable) < kept)
    velocity = rng.normal(size=model.mask.size).astype(np.float32) * model.mask
    linear = 0.1 * rng.normal(size=model.mask.size).astype(np.float32) if flags & 256 else None
    state = {"optimizer.momentum": velocity}
    workers = [Worker(FlatModule(module, torch.device("cpu")), samples, mine, training, 1, 0, state) for _ in "ab"]
    layers = read_perceptron(module, model.layout)
    assert layers is not None
    request = Score(model, "squares") if flags & 16 and not prox else Fit(model, prox=prox, linear=linear)
    linear = 0.0 if request.linear is None else linear
    update = Perceptrons(layers, samples, training, lanes).train(0, workers[0], request, 2)
    orders = [workers[1].next_order() for _ in range(2)]
    values, loss, speed, squares, nearest = in_doubles(module, model, x, y, orders, training, prox, linear, velocity)
    assume(nearest > 1e-5)  # else rounding decides whether a unit fires
    assert np.allclose(update.model.weights, values, rtol=1e-4, atol=1e-5)
    assert not update.model.weights[~model.mask].any()
    assert update.loss == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert workers[0].steps == 2 * -(-count // batch)
    if momentum:
        assert np.allclose(workers[0].optimizer["momentum"], speed, rtol=1e-4, atol=1e-5)
    if isinstance(request, Score):
        assert np.allclose(update.scores, squares, rtol=1e-3, atol=1e-6)


def test_a_step_by_hand():
    """Two inputs, two classes, no bias, all zero: both classes have probability ½."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    nn.init.zeros_(module[1].weight)
    samples = Samples.on(torch.device("cpu"), np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1]))
    training = RunConfig(batch_size=2, lr=0.5, epochs=1)
    model = model_of(module).under(np.array([True, True, True, False]))
    worker = Worker(FlatModule(module, torch.device("cpu")), samples, np.arange(2), training, 1, 0)
    update = Perceptrons(read_perceptron(module, model.layout), samples, training).train(0, worker, Fit(model), 1)
    assert update.model.weights.tolist() == [-0.25, -0.25, 0.25, 0]  # ¼ · ((1, 2) − (3, 4)) · ½ · ±1, the last pruned
    assert update.loss == pytest.approx(np.log(2))


@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_a_model_comes_back_as_it_was_laid_down(lanes):
    layers = [Linear(5, 70, 0, 350, True), Linear(70, 3, 420, None, False)]
    workspace = Workspace(layers, 7, lanes)
    values = np.arange(1, 631, dtype=np.float32)
    workspace.load(values, np.ones(630, np.bool_))
    assert np.array_equal(workspace.values(), values)
    assert np.count_nonzero(workspace._weights) == 630


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(4, 2)],
        [nn.Flatten(), nn.Linear(4, 2), nn.ReLU()],
        [nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)],
        [nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)],
        [nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2).requires_grad_(False)],
        [nn.Flatten(), *[nn.Linear(4, 4)] * 2],
    ],
    ids=["no flatten", "ends in relu", "begins with relu", "tanh", "frozen", "shared"],
)
def test_other_networks_are_left_to_others(layers):
    module = nn.Sequential(*layers)
    assert read_perceptron(module, layout_of(module)) is None


def test_samples_that_the_network_does_not_take_are_refused():
    layers = [Linear(4, 2, 0, None, False)]
    for x, y in ((np.zeros((3, 5)), [0, 1, 0]), (np.zeros((3, 4)), [0, 1, 2]), (np.zeros((3, 4)), [0, -1, 0])):
        samples = Samples.on(torch.device("cpu"), x.astype(np.float32), np.array(y))
        with pytest.raises(ModelError, match="does not take"):
            Perceptrons(layers, samples, RunConfig())


def test_a_client_whose_training_diverges_is_seen():
    config = RunConfig(clients=3, lr=1e30, epochs=1)
    federation = Simulated(config, load_dataset("digits"))
    updates = list(federation.ask(config.method, 1, federation.initial()))
    assert not any(update.model.finite for update in updates)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_client_leaves_nothing_behind_for_the_next(momentum):
    module = network([9, 5, 7, 3], [1, 1, 1], [1, 1, 1])  # padded everywhere
    rng = np.random.default_rng(0)
    samples = Samples.on(torch.device("cpu"), rng.normal(size=(8, 9)).astype(np.float32), rng.integers(0, 3, 8))
    model, training = model_of(module), RunConfig(batch_size=5, epochs=1, momentum=momentum)
    huge = model.with_weights(model.weights * np.float32(1e30), True)
    network_of = FlatModule(module, torch.device("cpu"))

    def answer(perceptrons, request):
        worker = Worker(network_of, samples, np.arange(8), training, 1, 0)
        return perceptrons.train(0, worker, request, 2)

    used, fresh = (Perceptrons(read_perceptron(module, model.layout), samples, training) for _ in "ab")
    half = model.under(np.arange(model.mask.size) % 2 > 0)
    assert not answer(used, Fit(huge, prox=0.1, linear=np.ones(model.mask.size))).model.finite
    answer(used, Score(half, "squares"))
    assert answer(used, Fit(model)).model.same_as(answer(fresh, Fit(model)).model)


def test_threads_give_the_same_bytes_as_one(monkeypatch):
    config = RunConfig(clients=5, epochs=1, split="dirichlet:0.5")
    rounds = []
    for cores in (1, 3):
        monkeypatch.setattr(base, "cores_here", lambda cores=cores: cores)
        federation = Simulated(config, load_dataset("digits"))
        rounds.append([update.model for update in federation.ask(config.method, 1, federation.initial())])
    assert all(one.same_as(two) for one, two in zip(*rounds, strict=True))
