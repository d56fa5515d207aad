from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.clients.flat import FlatModule
from fedsparsify.clients.worker import Samples, Worker, evaluate
from fedsparsify.methods import Fit
from fedsparsify.networks import build, model_of

CPU = torch.device("cpu")


def samples(count=10, shape=(4,), classes=2) -> Samples:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, *shape)).astype(np.float32)
    return Samples.on(CPU, x, rng.integers(0, classes, count))


def worker(module: nn.Module, data: Samples, **settings) -> Worker:
    training = RunConfig(**{"epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": 0.0} | settings)
    return Worker(FlatModule(module, CPU), data, np.arange(len(data.y)), training, round=1, client=3)


def by_torch(module: nn.Module, data: Samples, mask, prox=0.0, epochs=2, **sgd) -> torch.Tensor:
    """The same training with torch's own optimiser and the worker's own order of samples."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, **sgd)
    anchor = [p.detach().clone() for p in module.parameters()]
    for epoch in range(epochs):
        rng = np.random.default_rng(np.random.SeedSequence([1990, 1, 3, epoch]))
        order = torch.from_numpy(rng.permutation(len(data.y)))
        for batch in order.split(4):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(module(data.x[batch]), data.y[batch])
            for p, start in zip(module.parameters(), anchor, strict=True):
                loss = loss + prox / 2 * ((p - start) ** 2).sum()
            loss.backward()
            for p, keep in zip(module.parameters(), mask, strict=True):
                p.grad *= keep
            optimiser.step()
    return torch.cat([p.detach().ravel() for p in module.parameters()])


@pytest.mark.parametrize(
    "sgd", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=["plain", "momentum", "nesterov"]
)
@pytest.mark.parametrize("prox", [0.0, 0.5])
def test_training_equals_torchs_own_sgd(sgd, prox):
    data = samples()
    module = build("fc", (4,), 2, seed=0)
    start = model_of(module).under(np.arange(model_of(module).layout.trainable) % 3 > 0)
    update = worker(build("fc", (4,), 2, seed=0), data, **sgd).fit(Fit(start, prox=prox))
    flat = FlatModule(module, CPU)
    flat.load(start)
    mask = [torch.from_numpy(view) for view in start.layout.views(start.mask).values()]
    expected = by_torch(module, data, mask, prox, **sgd)
    assert np.allclose(update.model.weights, expected.numpy(), rtol=1e-5, atol=1e-6)
    assert update.samples == 10


def test_pruned_entries_stay_zero_in_weights_and_momentum():
    one = worker(build("fc", (4,), 2, seed=0), samples(), momentum=0.9)
    dense = model_of(build("fc", (4,), 2, seed=0))
    one.fit(Fit(dense))
    keep = np.random.default_rng(0).random(dense.layout.trainable) < 0.5
    assert one.velocity[~keep].any()
    update = one.fit(Fit(dense.under(keep)))
    assert not update.model.weights[~keep].any()
    assert not one.velocity[~keep].any()
    assert one.velocity[keep].any()


def test_randomness_depends_on_seed_round_and_client_alone():
    data, start = samples(64), model_of(build("fc", (4,), 2, seed=0))
    network = FlatModule(build("fc", (4,), 2, seed=0), CPU)
    training = RunConfig(epochs=1, batch_size=4, lr=0.1)

    def trained(round, client):
        return Worker(network, data, np.arange(64), training, round, client).fit(Fit(start)).model

    first = trained(1, 0)
    assert not first.same_as(trained(1, 1))
    assert not first.same_as(trained(2, 0))
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002
    assert first.same_as(trained(1, 0))


def test_torchs_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    worker(build("fc", (4,), 2, seed=0), samples()).fit(Fit(model_of(build("fc", (4,), 2, seed=0))))
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_batch_norm_and_augmentation_train_and_repeat():
    data = samples(12, (3, 16, 16), 3)
    start = model_of(build("cnn", (3, 16, 16), 3, seed=0))
    updates = [
        worker(build("cnn", (3, 16, 16), 3, seed=0), data, augment="pad-crop-flip").fit(Fit(start)) for _ in range(2)
    ]
    assert updates[0].model.same_as(updates[1].model)
    moved = updates[0].model.tensors()["5.running_mean"] - start.tensors()["5.running_mean"]
    assert moved.any()  # statistics follow the data


def test_the_last_smaller_batch_is_kept():
    start = model_of(build("fc", (4,), 2, seed=0))
    one = worker(build("fc", (4,), 2, seed=0), samples(10), epochs=1)
    one.fit(Fit(start))
    assert one.steps == 3  # 4 + 4 + 2


def test_a_request_may_name_its_epochs():
    start = model_of(build("fc", (4,), 2, seed=0))
    one = worker(build("fc", (4,), 2, seed=0), samples(10), epochs=4)
    one.fit(Fit(start, epochs=1))
    assert one.steps == 3


def test_evaluation_on_literals():
    module = nn.Sequential(nn.Linear(2, 2, bias=False))
    module[0].weight.data = torch.eye(2)
    data = Samples(torch.tensor([[9.0, 0.0], [0.0, 9.0], [9.0, 0.0]]), torch.tensor([0, 1, 1]))
    result = evaluate(FlatModule(module, CPU), model_of(module), data)
    assert result.accuracy == pytest.approx(2 / 3)
    assert result.loss == pytest.approx(3.0, abs=0.01)


def test_integer_buffers_start_afresh_with_every_model():
    module = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, momentum=None))
    network, start = FlatModule(module, CPU), model_of(module)
    network.module(torch.randn(8, 4))
    network.load(start)
    assert module[1].num_batches_tracked == 0
    assert np.array_equal(network.values(), start.weights)
