from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.methods import Fit, Score
from fedsparsify.networks import build, model_of
from fedsparsify.training.flat import FlatModule, flat_gradient, hessian_gradient
from fedsparsify.training.worker import Samples, Worker, evaluate

CPU = torch.device("cpu")


def samples(count=10, shape=(4,), classes=2) -> Samples:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, *shape)).astype(np.float32)
    return Samples.on(CPU, x, rng.integers(0, classes, count))


def worker(module: nn.Module, data: Samples, copied: bool = False, **settings) -> Worker:
    training = RunConfig(**{"epochs": 2, "batch_size": 4, "lr": 0.1, "momentum": 0.0} | settings)
    return Worker(FlatModule(module, CPU, copied), data, np.arange(len(data.y)), training, round=1, client=3)


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
    assert one.optimizer["momentum"][~keep].any()
    update = one.fit(Fit(dense.under(keep)))
    assert not update.model.weights[~keep].any()
    assert not one.optimizer["momentum"][~keep].any()
    assert one.optimizer["momentum"][keep].any()


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


def test_statistics_and_loss_of_a_step_with_sam_are_those_at_the_weights():
    data, start = samples(), model_of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))

    def one_step(**settings):
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        return worker(module, data, epochs=1, batch_size=10, **settings).fit(Fit(start))

    plain, uphill, split = one_step(), one_step(sam=0.5), start.layout.trainable
    assert np.array_equal(uphill.model.weights[split:], plain.model.weights[split:])
    assert uphill.loss == plain.loss
    assert abs(uphill.model.weights[:split] - plain.model.weights[:split]).max() > 1e-3


def test_tensors_that_are_copies_are_trained_the_same():
    data, start = samples(12, (3, 16, 16), 3), model_of(build("cnn", (3, 16, 16), 3, seed=0))
    start = start.under(np.arange(start.layout.trainable) % 3 > 0)
    made = [
        worker(build("cnn", (3, 16, 16), 3, seed=0), data, copied, momentum=0.9).fit(Fit(start, prox=0.1))
        for copied in (False, True)
    ]
    assert np.allclose(made[0].model.weights, made[1].model.weights, rtol=1e-5, atol=1e-7)
    assert np.array_equal(made[0].model.mask, made[1].model.mask)
    assert made[0].loss == pytest.approx(made[1].loss, rel=1e-6)


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


def test_a_gradient_is_torchs_own_on_a_stratified_batch():
    data = samples(40, classes=3)
    network = build("fc", (4,), 3, seed=0)
    start = model_of(network).under(np.arange(model_of(network).layout.trainable) % 3 > 0)
    one = worker(network, data)
    update = one.answer(Score(start, by="gradient", per_class=4))
    batch = one._probe(4, samples=0)
    assert np.bincount(data.y[batch]).tolist() == [4, 4, 4]
    FlatModule(network, CPU).load(start)
    loss = nn.functional.cross_entropy(network(data.x[batch]), data.y[batch])
    expected = torch.cat([g.ravel() for g in torch.autograd.grad(loss, list(network.parameters()))])
    assert np.allclose(update.scores, expected, atol=1e-7)
    assert update.scores[~start.mask].any()  # what is pruned has a gradient too
    assert update.model is start
    assert update.loss == pytest.approx(loss.item())


def test_a_class_with_few_samples_gives_what_it_has():
    data = Samples(torch.zeros(7, 4), torch.tensor([0, 0, 0, 0, 0, 1, 2]))
    one = worker(build("fc", (4,), 3, seed=0), data)
    assert np.bincount(data.y[one._probe(3, samples=0)]).tolist() == [3, 1, 1]


def test_hessian_times_gradient_on_literals():
    """Two classes, one input x = 1, one weight a: loss log(1 + e^−a), g = −σ(−a), H = σ(a) σ(−a)."""

    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor([2.0]))

        def forward(self, x):
            return torch.cat([self.a * x, 0 * x], 1)

    module = Single()
    one = worker(module, Samples(torch.ones(1, 1), torch.tensor([0])))
    down, up = 1 / (1 + np.exp(2.0)), 1 / (1 + np.exp(-2.0))
    start = model_of(module)
    assert one.answer(Score(start, by="gradient")).scores == pytest.approx([-down])
    assert one.answer(Score(start, by="hessian-gradient")).scores == pytest.approx([-up * down * down])
    cool = 1 / (1 + np.exp(1.0))  # temperature 2: σ of −a / 2, and a factor 1/2 for every derivative
    halved = one.answer(Score(start, by="hessian-gradient", temperature=2.0)).scores
    assert halved == pytest.approx([-(1 - cool) * cool * cool / 8])


@pytest.mark.parametrize("network", ["fc", "cnn"])
def test_hessian_times_gradient_against_finite_differences(network):
    """H g ≈ (g(w + εg) − g(w − εg)) / 2ε, in float64, through batch norm, pooling and dropout."""
    shape = (4,) if network == "fc" else (3, 8, 8)
    data = samples(12, shape, 3)
    data = Samples(data.x.double(), data.y)
    module = build(network, shape, 3, seed=0)
    for name, layer in list(module.named_children()):  # smooth in place of kinks, so that differences converge
        if isinstance(layer, nn.ReLU):
            setattr(module, name, nn.Softplus())
        elif isinstance(layer, nn.MaxPool2d):
            setattr(module, name, nn.AvgPool2d(2))
    module = module.double().train()
    parameters = list(module.parameters())

    def slope():
        loss = nn.functional.cross_entropy(module(data.x) / 2, data.y)
        return flat_gradient(loss, parameters)

    g = slope()
    exact = hessian_gradient(nn.functional.cross_entropy(module(data.x) / 2, data.y), parameters)
    sides = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            offset = 0
            for p in parameters:
                p += step * g[offset : offset + p.numel()].view_as(p)
                offset += p.numel()
        sides.append(slope())
    numeric = (sides[0] - sides[1]) / 2e-5
    assert torch.allclose(exact, numeric, rtol=1e-5, atol=1e-8 * float(exact.abs().max()) + 1e-9)
    assert float(exact.abs().max()) > 1e-4


def test_squares_train_as_fit_does_and_add_up_the_squared_gradients():
    start = model_of(build("fc", (4,), 2, seed=0)).under(
        np.arange(model_of(build("fc", (4,), 2, seed=0)).layout.trainable) % 3 > 0
    )
    fitted = worker(build("fc", (4,), 2, seed=0), samples(), momentum=0.5).fit(Fit(start))
    scored = worker(build("fc", (4,), 2, seed=0), samples(), momentum=0.5).answer(Score(start, by="squares"))
    assert scored.model.same_as(fitted.model)
    assert scored.loss == fitted.loss
    assert scored.scores[~start.mask].any()
    one = worker(build("fc", (4,), 2, seed=0), samples(8), batch_size=8)
    once = one.answer(Score(start, by="squares", epochs=1)).scores
    whole = worker(build("fc", (4,), 2, seed=0), samples(8)).answer(Score(start, by="gradient", per_class=8)).scores
    assert np.allclose(once, whole**2, rtol=1e-4, atol=1e-9)


def test_a_score_on_a_batch_neither_depends_on_requests_before_it_nor_alters_those_after():
    start = model_of(build("fc", (4,), 2, seed=0))
    plain, asked = (worker(build("fc", (4,), 2, seed=0), samples(), momentum=0.5) for _ in range(2))
    before = asked.answer(Score(start, by="hessian-gradient"))
    assert asked.fit(Fit(start)).model.same_as(plain.fit(Fit(start)).model)
    assert np.array_equal(before.scores, asked.answer(Score(start, by="hessian-gradient")).scores)


def test_statistics_do_not_move_while_scoring():
    data = samples(12, (3, 16, 16), 3)
    start = model_of(build("cnn", (3, 16, 16), 3, seed=0))
    update = worker(build("cnn", (3, 16, 16), 3, seed=0), data).answer(Score(start, by="gradient"))
    assert update.model.same_as(start)
