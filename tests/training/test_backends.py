"""One worker after another ≡ the whole cohort at once."""

from __future__ import annotations

import sys
import types
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import EVERY_METHOD
from torch import nn

from fedsparsify import METHODS, RunConfig
from fedsparsify.data import Dataset, load_dataset
from fedsparsify.federation.rounds import run_rounds
from fedsparsify.federation.simulated import Simulated
from fedsparsify.native.code_images import CodeImage
from fedsparsify.networks import build, model_of
from fedsparsify.notices import Notice
from fedsparsify.options import settings
from fedsparsify.training.backends import BACKENDS, Setup
from fedsparsify.training.backends.autograd import OneByOne
from fedsparsify.training.backends.choose import disagreement
from fedsparsify.training.backends.stacked import Mapped
from fedsparsify.training.batches import Step, steps
from fedsparsify.training.native.perceptrons import Perceptrons
from fedsparsify.training.stacks.dense import DenseStack
from fedsparsify.training.stacks.stack import Stack
from fedsparsify.training.worker import Samples

# Products of a stack are summed in another order than those of one model; after several rounds the weights may
# differ by this much, relative to the largest of them.
TOLERANCE = 1e-4


def test_steps_of_equal_clients():
    assert list(steps([10, 10], 4)) == [Step(0, 0, 2, 0, 4), Step(1, 0, 2, 4, 4), Step(2, 0, 2, 8, 2)]


def test_steps_of_uneven_clients():
    assert list(steps([9, 5, 5, 2], 4)) == [
        Step(0, 0, 3, 0, 4),
        Step(1, 0, 1, 4, 4),
        Step(2, 0, 1, 8, 1),
        Step(1, 1, 2, 4, 1),
        Step(0, 3, 1, 0, 2),
    ]


def test_every_client_sees_each_of_its_samples_once_an_epoch():
    samples = [17, 16, 9, 9, 4, 1]
    seen = [[] for _ in samples]
    for step in steps(samples, 4):
        for model in range(step.start, step.start + step.models):
            seen[model] += range(step.offset, step.offset + step.size)
    assert seen == [list(range(count)) for count in samples]


def compare(config: RunConfig, data: Dataset, mapped: bool = False, tolerance: float = TOLERANCE) -> None:
    together, alone = Simulated(config, data), Simulated(config, data)
    if mapped:
        together.environment.cohort.backend = Mapped(together.environment.cohort.setup)
    assert together.environment.cohort.backend.name != "one_by_one"
    alone.environment.cohort.backend = OneByOne(alone.environment.cohort.setup)
    runs = []
    for federation in (together, alone):
        first = config.method.first_round
        models = run_rounds(federation, config.method, federation.initial(), first, config.rounds, config.seed)
        runs.append([(model, entry) for model, entry, _ in models])
    for (one, entry_one), (two, entry_two) in zip(*runs, strict=True):
        largest = np.abs(two.weights).max()
        # A weight on the edge of being purged may fall on either side.
        shared = one.mask & two.mask
        assert np.count_nonzero(one.mask ^ two.mask) <= 4
        assert np.abs(one.weights[: shared.size] - two.weights[: shared.size])[shared].max() < tolerance * largest
        assert entry_one.train_loss == pytest.approx(entry_two.train_loss, rel=max(1e-3, tolerance))
        assert entry_one.clients == entry_two.clients
        rest = slice(one.layout.trainable, None)
        assert np.allclose(one.weights[rest], two.weights[rest], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", EVERY_METHOD)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.slow, id="plain"),
        pytest.param({"momentum": 0.5, "keep_optimizer": True, "split": "dirichlet:0.5"}, id="momentum"),
    ],
)
def test_every_method_of_fc(name, more):
    # With readjust = 1 or other learning rates, some sample meets a ReLU at its kink, and one unit's weights differ by
    # 2e-4: see docs/log.md. What kernels and workers compute is held to float64 in test_cpu_kernels.py.
    short = {"tune": 2, "readjust": 2, "end": 3}
    tuned = {option: value for option, value in short.items() if option in settings(METHODS[name])}
    config = RunConfig(method={"name": name, **tuned}, rounds=3, epochs=2, clients=5, lr=0.03, **more)
    # SCAFFOLD divides what a client moved by the sum of its few rates, and adds it to every gradient of the next round.
    compare(config, load_dataset("digits"), tolerance=100 * TOLERANCE if name == "scaffold" else TOLERANCE)


@pytest.mark.parametrize("name", ["fedsparsify-global", "fedprox", "prunefl"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_perceptrons_are_stacked_where_there_is_no_numba(name, momentum, monkeypatch):
    def missing(*_):
        raise ImportError("no numba.")

    monkeypatch.setattr(CodeImage, "__call__", missing)
    config = RunConfig(method=name, rounds=2, epochs=2, clients=3, momentum=momentum, split="dirichlet:0.5")
    with pytest.warns(Notice, match=r"native back end: no numba\. A slower one takes its place"):
        assert Simulated(config, load_dataset("digits")).environment.cohort.backend.name == "dense"
        compare(config, load_dataset("digits"))


def pictures(count=96, classes=3, side=8) -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 3, side, side)).astype(np.float32) + y[:, None, None, None].astype(np.float32)
    return Dataset("pictures", x, y, x[:30], y[:30])


@pytest.mark.parametrize(
    "more",
    [
        {"momentum": 0.9, "nesterov": True, "augment": "pad-crop-flip"},
        {"momentum": 0.0, "split": "dirichlet:1"},
        {"participation": 0.5, "method": "fedprox"},
    ],
    ids=["nesterov-augmented", "uneven-plain", "partial-prox"],
)
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "threads"])
def test_convolutions_batch_norm_and_dropout(more, mapped):
    config = RunConfig(network="cnn", rounds=2, epochs=1, clients=4, lr=0.01, batch_size=8, **more)
    compare(config, pictures(), mapped)


def test_perceptrons_take_the_hand_written_path():
    assert DenseStack.takes(build("fc", (4,), 2, 0))
    assert not DenseStack.takes(build("cnn", (3, 8, 8), 2, 0))
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10))
    assert not DenseStack.takes(own)  # torch's own dropout draws from a global generator


def test_your_own_perceptron_with_dropout_and_without_bias(elsewhere):
    (elsewhere / "own_mlp.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    relu = nn.ReLU()\n"
        "    layers = [nn.Flatten(), nn.Linear(64, 8, bias=False), relu, nn.Dropout(0.3), nn.Linear(8, 9), relu]\n"
        "    return nn.Sequential(*layers, nn.Linear(9, 10))\n"
    )
    compare(RunConfig(network="own_mlp:net", rounds=2, clients=4, lr=0.05), load_dataset("digits"))


def test_a_network_that_cannot_be_mapped_is_refused_by_that_back_end_and_trains_in_threads(elsewhere):
    (elsewhere / "odd_net.py").write_text(
        "from torch import nn\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        "        x = x.flatten(1)\n"
        "        return self.inner(x) if float(x.sum()) > -1e9 else self.inner(-x)\n"
    )
    config = RunConfig(network="odd_net:Odd", rounds=2, epochs=1, clients=3)
    federation = Simulated(config, load_dataset("digits"))
    cohort = federation.environment.cohort
    assert "vmap" in disagreement(Mapped(cohort.setup), cohort.setup)
    entries = [entry for _, entry, _ in run_rounds(federation, config.method, federation.initial(), 1, 2, 0)]
    assert (cohort.backend.name, entries[-1].clients) == ("threads", 3)


def test_a_network_that_draws_from_torchs_generator_trains_one_by_one_with_one_notice(elsewhere):
    (elsewhere / "drawing_net.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Noisy(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(64, 10)\n"
        "    def forward(self, x):\n"
        "        x = x.flatten(1)\n"
        "        return super().forward(x + 0.1 * torch.randn_like(x) if self.training else x)\n"
    )
    config = RunConfig(network="drawing_net:Noisy", rounds=1, epochs=1, clients=3)
    models = []
    for _ in range(2):
        federation = Simulated(config, load_dataset("digits"))
        with pytest.warns(Notice, match="one client at a time") as caught:
            (model, *_), *_ = run_rounds(federation, config.method, federation.initial(), 1, 1, 0)
        assert len(caught) == 1
        models.append(model)
    assert models[0].same_as(models[1])


def test_memory_follows_participants_not_clients():
    config = RunConfig(clients=700, participation=4 / 700, epochs=1, rounds=1)
    federation = Simulated(config, load_dataset("digits"))
    list(federation.ask(config.method, 1, federation.initial()))
    cohort = federation.environment.cohort
    assert len(cohort.backend.kernels._workspaces) <= 4


def test_a_request_for_other_epochs_is_trained_apart():
    from fedsparsify.methods import Fit

    data, config = load_dataset("digits"), RunConfig(clients=3, epochs=2)
    federation = Simulated(config, data)
    workers = [federation._worker(1, client, federation.initial()) for client in range(3)]
    start = federation.initial()
    federation.environment.cohort.fit(workers, [Fit(start), Fit(start, epochs=1), Fit(start)])
    assert [worker.steps for worker in workers] == [32, 16, 30]  # 481 or 480 samples: 16 or 15 batches an epoch


def test_stacks_round_trip():
    first, second = (model_of(build("cnn", (3, 8, 8), 2, seed)) for seed in (0, 1))
    second = second.under(np.arange(second.layout.trainable) % 2 > 0)
    stack = Stack(first.layout, 3, torch.device("cpu"))
    stack.load([first, second, first])
    assert [
        np.array_equal(row, model.weights) for row, model in zip(stack.rows(), (first, second, first), strict=True)
    ] == [True] * 3
    assert stack.tensors["0.weight"].is_contiguous()
    assert int(stack.pruned.sum()) == second.pruned
    buffer = torch.zeros_like(stack.weights)
    rows = torch.randn(3, first.layout.trainable)
    stack.set_rows(buffer, rows)
    assert torch.equal(stack.get_rows(buffer), rows)


def perceptron(change):
    """A factory of perceptrons that `change` makes into something else than their layers say."""

    def make():
        torch.manual_seed(4)
        return change(nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))) or pytest.fail()

    return make


def hooked(net):
    net[1].register_forward_hook(lambda module, given, result: result * 0.5)
    return net


def hooked_outside(net):
    net.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    return net


def hooked_backwards(net):
    net[2].register_full_backward_hook(lambda module, inner, outer: (inner[0] * 0.5,))
    return net


def hooked_parameter(net):
    net[1].weight.register_hook(lambda gradient: gradient * 0.5)
    return net


def weight_normed(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(net[1])
    return net


def spectral_normed(net):
    nn.utils.parametrizations.spectral_norm(net[1])
    return net


def tied(net):
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), net[1], net[3])
    wide[3].weight = wide[1].weight
    return wide


def own_forward(net):
    net[2].forward = lambda x: x.clamp(min=0, max=1)
    return net


def frozen_buffer(net):
    weight = net[1].weight.detach()
    del net[1].weight
    net[1].register_buffer("weight", weight)
    return net


def replaced(net):
    net[1].weight, net[1].bias = nn.Parameter(torch.randn(12, 64)), nn.Parameter(torch.randn(12))
    return net


def cut(net):
    net[1].weight, net[1].bias = nn.Parameter(torch.randn(7, 64) / 8), nn.Parameter(torch.randn(7))
    net[3].weight = nn.Parameter(torch.randn(10, 7) / 3)
    return net


CHANGES = (
    *(hooked, hooked_outside, hooked_backwards, hooked_parameter, weight_normed, spectral_normed, tied, own_forward),
    *(frozen_buffer, cut),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_layers_that_are_not_what_their_class_says_are_left_to_autograd(change, monkeypatch):
    module = types.ModuleType("users_perceptron")
    module.net = perceptron(change)
    monkeypatch.setitem(sys.modules, "users_perceptron", module)
    config = RunConfig(network="users_perceptron:net", rounds=2, epochs=1, clients=3, lr=0.05)
    assert Simulated(config, load_dataset("digits")).environment.cohort.backend.name == "threads"
    compare(config, load_dataset("digits"))


def test_a_tensor_of_the_declared_shape_may_be_replaced(monkeypatch):
    module = types.ModuleType("users_perceptron")
    module.net = perceptron(replaced)
    monkeypatch.setitem(sys.modules, "users_perceptron", module)
    config = RunConfig(network="users_perceptron:net", rounds=1, epochs=1, clients=3)
    assert Simulated(config, load_dataset("digits")).environment.cohort.backend.name == "native"


@pytest.mark.parametrize("kind", ["wrong", "statistics", "raises"])
def test_a_back_end_that_computes_another_network_is_left_out_with_one_notice(kind, monkeypatch):
    train = Perceptrons.train

    def broken(self, slot, worker, request, epochs):
        if kind == "raises":
            raise RuntimeError("no such layer\nand more")
        update = train(self, slot, worker, request, epochs)
        weights = update.model.weights.copy()
        bias = update.model.layout.slices["5.bias" if kind == "wrong" else "1.weight"]
        weights[bias] += 0.01 * (weights[bias] - request.model.weights[bias])
        return replace(update, model=request.model.with_weights(weights, True))

    monkeypatch.setattr(Perceptrons, "train", broken)
    config = RunConfig(rounds=1, epochs=1, clients=3)
    federation = Simulated(config, load_dataset("digits"))
    with pytest.warns(Notice, match="not trained by the native back end: (its update of|no such layer)") as caught:
        list(federation.ask(config.method, 1, federation.initial()))
    assert len(caught) == 1
    assert federation.environment.cohort.backend.name == "dense"


def setup_of(network: str, device: str = "cpu", **settings) -> Setup:
    """What back ends are asked about; on `meta`, a device that is no CPU."""
    config, data = RunConfig(network=network, **settings), pictures()
    samples = Samples.on(torch.device("cpu"), data.x_train, data.y_train)
    make = lambda: build(config.network, data.shape, data.classes, 0)  # noqa: E731
    return Setup(make, samples, config, torch.device(device))


@pytest.mark.parametrize(
    ("network", "device", "augment", "takers"),
    [
        ("fc", "cpu", "none", ["native", "dense", "threads", "one_by_one"]),
        ("fc", "cpu", "pad-crop-flip", ["dense", "threads", "one_by_one"]),
        ("cnn", "cpu", "none", ["sparse", "threads", "one_by_one"]),
        ("cnn", "cpu", "pad-crop-flip", ["sparse", "threads", "one_by_one"]),
        ("fc", "meta", "none", ["dense", "mapped", "one_by_one"]),
        ("cnn", "meta", "none", ["mapped", "one_by_one"]),
    ],
)
def test_the_rule_that_picks_a_back_end(network, device, augment, takers):
    """Each says why it refuses a network; the first that does not is the fastest."""
    setup = setup_of(network, device, augment=augment)
    refusals = {kind.name: kind.refusal(setup) for kind in BACKENDS}
    assert [name for name, reason in refusals.items() if reason is None] == takers
    assert all(reason for name, reason in refusals.items() if name not in takers)


@pytest.mark.parametrize("count", [2, 4])
def test_a_back_end_is_chosen_for_a_handful_of_samples(count):
    data = load_dataset("digits")
    labels = np.arange(count) % 2
    few = Dataset("few", data.x_train[:count], labels, data.x_test[:4], np.array([0, 1, 0, 1]))
    config = RunConfig(rounds=1, epochs=1, clients=1)
    assert Simulated(config, few).environment.cohort.backend.name == "native"
