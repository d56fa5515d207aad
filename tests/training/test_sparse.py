"""The CPU's kernels for sparse convolutional networks ≡ autograd on the module itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedsparsify import RunConfig
from fedsparsify.data import Dataset
from fedsparsify.federation.simulated import Simulated
from fedsparsify.keyed import KeyedDropout
from fedsparsify.methods import Fit, Score
from fedsparsify.native.machine import lanes_here
from fedsparsify.networks import build, layout_of, model_of
from fedsparsify.training.backends import Setup, base
from fedsparsify.training.backends.autograd import OneByOne
from fedsparsify.training.backends.choose import choose, disagreement
from fedsparsify.training.backends.sparse import Sparse
from fedsparsify.training.fixed_norms import set_training
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.graph_layers import Convolution, Norm, NotPlanned
from fedsparsify.training.inputs import Samples
from fedsparsify.training.native.conv.network import SparseNetwork, SurvivorModels
from fedsparsify.training.native.conv.plan import read_plan
from fedsparsify.training.native.conv.planes import Phase, Planes, phases, taps
from fedsparsify.training.native.conv.program import Program
from fedsparsify.training.native.conv.streams import Streams, even, neighbours
from fedsparsify.training.native.kernel_code import CONVOLUTIONS
from fedsparsify.training.settings import OPTIMIZER
from fedsparsify.training.worker import Worker

CPU = torch.device("cpu")
NARROW = [lanes for lanes in (8, 4) if lanes < lanes_here()]
CLASSES = 3


class Residual(nn.Module):
    """A block whose shortcut is the input itself or a convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm = nn.BatchNorm2d(outputs) if norm else nn.Identity()
        plain = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if plain else nn.Conv2d(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.norm(self.second(self.relu(self.first(x)))) + self.shortcut(x))


def random_network(rng: np.random.Generator) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Layers that the kernels have, in some order, and the shape of a sample."""
    shape = (int(rng.integers(1, 4)), *(int(side) for side in rng.integers(5, 13, 2)))
    layers: list[nn.Module] = []
    channels, x = shape[0], torch.zeros(2, *shape)

    def put(*more: nn.Module) -> None:
        nonlocal x
        for layer in more:
            x = layer(x)
            layers.append(layer)

    for _ in range(int(rng.integers(1, 4))):
        kind, outputs = rng.choice(["conv", "norm", "residual", "groups", "odd"]), int(rng.integers(2, 20))
        if kind == "residual":
            stride = int(rng.integers(1, 3))
            put(Residual(channels, outputs := int(rng.choice([channels, outputs])), stride, bool(rng.integers(2))))
        elif kind == "groups":
            outputs = channels * int(rng.integers(1, 4))
            put(nn.Conv2d(channels, outputs, 3, padding=1, groups=channels), nn.ReLU())
        elif kind == "odd":
            size, stride = (min(int(side), int(rng.integers(1, 6))) for side in x.shape[2:]), int(rng.integers(1, 4))
            put(nn.Conv2d(channels, outputs, tuple(size), stride, int(rng.integers(0, 3)), bias=False))
        else:
            put(nn.Conv2d(channels, outputs, 3, padding=1))
            put(*([nn.BatchNorm2d(outputs)] if kind == "norm" else []), nn.ReLU())
        channels = outputs
        small = min(x.shape[2:]) < 4
        after = rng.choice(["", "max", "max", "odd max", "mean", "adaptive"])
        if after == "max" and not small:
            put(nn.MaxPool2d(2))
        elif after == "odd max" and not small:
            put(nn.MaxPool2d(3, 2, 1, ceil_mode=bool(rng.integers(2))))
        elif after == "mean" and not small:
            put(nn.AvgPool2d(3, 2, 1, count_include_pad=bool(rng.integers(2))))
        elif after == "adaptive":
            put(nn.AdaptiveAvgPool2d((min(3, x.shape[2]), 1)))
    put(nn.Flatten())
    if rng.integers(2):
        put(nn.Linear(x.shape[1], 9), nn.BatchNorm1d(9), nn.ReLU(), KeyedDropout(0.3, 0))
    put(nn.Linear(x.shape[1], CLASSES))
    if all(max(m.kernel_size) == 1 for m in nn.Sequential(*layers).modules() if isinstance(m, nn.Conv2d)):
        layers.insert(0, nn.Conv2d(shape[0], shape[0], 3, padding=1))
    for layer in nn.Sequential(*layers).modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
    return nn.Sequential(*layers), shape


def networks_of(module, shape, mask, batch, lanes):
    """The network of a mask's survivors, and the module itself, for autograd."""
    layout = layout_of(module)
    plan = read_plan(module, layout, shape)
    planes = Planes(plan, lanes)
    streams = Streams(planes, layout, mask)
    (run,) = CONVOLUTIONS(lanes)
    program = Program(planes, layout, batch, run)
    program.bind(streams)
    network = SparseNetwork(plan, program, streams, module)
    return FlatModule(network, CPU), FlatModule(module, CPU), SurvivorModels(layout, streams.positions)


def margin_of(module: nn.Module) -> list[float]:
    """Filled, at the next forward pass, with how near values came to a ReLU's kink or to another maximum."""
    margins: list[float] = []

    def relu(_, given, __):
        sizes = given[0].detach().abs()
        margins.append(float(sizes[sizes > 0].min()) if sizes.any() else 1.0)  # zeros are zeros on both sides

    def pool(layer, given, _):
        x = nn.functional.pad(given[0].detach().double(), [layer.padding] * 4, value=-1e30)
        windows = nn.functional.unfold(x, layer.kernel_size, stride=layer.stride)
        windows = windows.reshape(len(x), x.shape[1], -1, windows.shape[-1])
        top = windows.topk(2, 2).values
        gaps = (top[:, :, 0] - top[:, :, 1])[top[:, :, 0] != top[:, :, 1]]
        margins.append(float(gaps.min()) if gaps.numel() else 1.0)

    for layer in module.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
            layer.register_forward_hook(relu)
        if isinstance(layer, nn.MaxPool2d):
            layer.register_forward_hook(pool)
    return margins


def difference(seed: int, lanes: int) -> tuple[float, bool]:
    """The largest relative difference of logits, gradient and statistics over three steps; whether a tie was near."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    return difference_of(*random_network(rng), rng, lanes)


def difference_of(
    module: nn.Sequential, shape: tuple[int, ...], rng: np.random.Generator, lanes: int
) -> tuple[float, bool]:
    """The same for one network."""
    normed = any(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in module.modules())
    least = 2 if normed else 1  # a batch norm may not take one value per channel
    kept, batch = rng.choice([1.0, 0.6, 0.2, 0.05, 0.001]), int(rng.integers(least, 71))
    model = model_of(module)
    model = model.under(rng.random(model.layout.trainable) < kept)
    ours, theirs, models = networks_of(module, shape, model.mask, batch, lanes)
    ours.load(models.model(model))
    theirs.load(model)
    margins, worst = margin_of(theirs.module), 0.0
    split = model.layout.trainable
    fewer = int(rng.integers(least, batch + 1))
    for step, (size, fixed_norms) in enumerate([(batch, False), (fewer, False), (fewer, True)]):
        x = torch.from_numpy(rng.normal(size=(size, *shape)).astype(np.float32))
        y, logits = torch.from_numpy(rng.integers(0, CLASSES, size)), []
        for network in (ours, theirs):
            set_training(network.module, fixed_norms)
            network.key.fill_(7_777_777_777 * (step + 1))
            network.refresh()
            logits.append(network.module(x.clone()))
            nn.functional.cross_entropy(logits[-1], y).backward()
            network.settle()
        statistics = ours.weights.numpy()[models.layout.trainable :][: model.layout.total - split]
        pairs = [
            (logits[0].detach().numpy(), logits[1].detach().numpy()),
            (models.spread(ours.gradient.numpy()), theirs.gradient.numpy() * model.mask),
            (statistics, theirs.weights.numpy()[split:]),
        ]
        worst = max(worst, *(float(np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-6)) for a, b in pairs))
    return worst, min(margins, default=1.0) < 1e-5


@pytest.mark.parametrize(("size", "side"), [(1, 6), (3, 10), (5, 6), (7, 12)])
def test_a_pool_within_a_convolution_of_any_size(size, side):
    """The first layer's gradient is taken from the tiles of the second's, before a pool that is undone tile by tile."""
    torch.manual_seed(size)
    first = [nn.Conv2d(2, 5, 3, padding=1), nn.ReLU()]
    second = [nn.Conv2d(5, 6, size, padding=size // 2), nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(6 * (side // 2) ** 2, CLASSES))
    shape = (2, side, side)
    assert [layer.pooled for layer in read_plan(module, layout_of(module), shape).convolutions] == [False, True, False]
    assert difference_of(module, shape, np.random.default_rng(size), lanes_here())[0] < 1e-5


@pytest.mark.parametrize("side", [4, 10])
def test_a_pool_within_a_batch_norm(side):
    torch.manual_seed(side)
    norm = nn.BatchNorm2d(5)
    nn.init.uniform_(norm.weight, -1.5, 1.5)
    first = [nn.Conv2d(2, 5, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(*first, nn.Flatten(), nn.Linear(5 * (side // 2) ** 2, CLASSES))
    shape = (2, side, side)
    assert len(read_plan(module, layout_of(module), shape).layers) == 4
    assert difference_of(module, shape, np.random.default_rng(side), lanes_here())[0] < 1e-5


class Sums(nn.Module):
    """Sums whose summands are sums, read again, or the same value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(channels, 4, 3, padding=1) for channels in (2, 4, 4))
        self.norm, self.relu = nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        x = self.norm(self.first(x))
        inner = self.second(x) + x
        outer = self.relu(inner + x + self.third(inner))
        return outer + outer


def test_summands_that_share_the_gradient_of_their_sum():
    for seed in range(4):
        torch.manual_seed(seed)
        module = nn.Sequential(Sums(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
        assert difference_of(module, (2, 6, 6), np.random.default_rng(seed), lanes_here())[0] < 1e-5


@pytest.mark.parametrize("stride", [(2, 1), (1, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("dilation", [1, (1, 2)])
def test_strides_in_tiles_of_full_size(stride, dilation):
    """Survivors share what they load where they read a stride apart, and only there."""
    for seed in (1, 5, 6):
        torch.manual_seed(seed)
        second = nn.Conv2d(4, 8, 3, stride, 1, dilation)
        module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), second, nn.Flatten())
        module.append(nn.Linear(module(torch.zeros(1, 2, 16, 16)).shape[1], CLASSES))
        assert difference_of(module, (2, 16, 16), np.random.default_rng(seed), lanes_here())[0] < 1e-5


def test_a_first_layer_of_one_pixel():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 6), nn.ReLU(), nn.Conv2d(4, CLASSES, 1), nn.Flatten())
    assert difference_of(module, (2, 6, 6), np.random.default_rng(3), lanes_here())[0] < 1e-5


@pytest.mark.parametrize("seed", range(6))
def test_random_networks(seed):
    worst, _ = difference(seed, lanes_here())
    assert worst < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [lanes_here(), *NARROW])
def test_two_hundred_random_networks(lanes):
    found = [difference(seed, lanes) for seed in range(200)]
    differ = {seed: tied for seed, (worst, tied) in enumerate(found) if worst >= 1e-4}
    assert all(differ.values()), differ
    assert len(differ) <= 4


def picture_samples(count=40, side=8, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(count) % CLASSES
    x = rng.normal(size=(count, 3, side, side)).astype(np.float32) + y[:, None, None, None].astype(np.float32)
    return Samples.on(CPU, x, y)


def setup_of(make, **more) -> Setup:
    settings = {"batch_size": 8, "lr": 0.02, "epochs": 2, "momentum": 0.0, "augment": "none"} | more
    return Setup(make, picture_samples(), RunConfig(**settings), CPU)


def cnn() -> nn.Module:
    """As the paper's, smaller."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(128, 20), nn.ReLU(), KeyedDropout(0.2, 0), nn.Linear(20, CLASSES)]
    return nn.Sequential(*layers, nn.BatchNorm2d(8), nn.Flatten(), *dense)


def half(setup: Setup, kept=0.3):
    model = model_of(setup.make())
    return model.under(np.random.default_rng(1).random(model.layout.trainable) < kept)


def answers(backend, setup, request, state=None, clients=2):
    workers = [
        Worker(setup.flat(), setup.samples, np.arange(k, 40, 2)[: 13 + 3 * k], setup.training, 1, k, state)
        for k in range(clients)
    ]
    context = backend.kernels_only() if isinstance(backend, Sparse) else None
    if context is None:
        return backend.fit(workers, [request] * clients), workers
    with context:
        return backend.fit(workers, [request] * clients), workers


def test_a_step_by_hand():
    """A window that is the image, no bias, all zero: both classes have probability ½."""
    module = nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.Flatten())
    nn.init.zeros_(module[0].weight)
    x = np.array([[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]], np.float32)
    training = RunConfig(batch_size=2, lr=0.5, epochs=1, momentum=0.0, augment="none")
    setup = Setup(lambda: module, Samples.on(CPU, x, np.array([0, 1])), training, CPU)
    model = model_of(module).under(np.array([True] * 7 + [False]))
    worker = Worker(setup.flat(), setup.samples, np.arange(2), training, 1, 0)
    backend = Sparse(setup)
    with backend.kernels_only():
        (update,) = backend.fit([worker], [Fit(model)])
    # ½ · mean of (½ − [class]) · x: ¼ · ((1, 2, 3, 4) − (5, 6, 7, 8)) · ½, the last entry pruned
    assert update.model.weights.tolist() == [-0.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, 0]
    assert update.loss == pytest.approx(np.log(2))
    assert worker.steps == 1


def test_phases_of_a_stride_of_two():
    """Of seven pixels, a window of three with a border of one: even ones meet its middle, odd ones its ends."""
    assert phases(7, 3, 2, 1, 1) == [Phase(1, 3, ((0, 1), (2, 0))), Phase(0, 4, ((1, 0),))]
    assert taps(7, 4, 3, 2, 1, 1) == 1
    assert taps(5, 3, 3, 1, 0, 1) == 0


def test_survivors_that_read_neighbouring_pixels_are_paired():
    """A window of 2 × 3: pairs side by side in both rows; the taps that are left lie one above the other."""
    down, right = np.repeat([0, 1], 3), np.tile([-1, 0, 1], 2)
    beside, above = neighbours((np.zeros(6, int), np.zeros(6, int), down, right), (1, 1))
    assert beside.tolist() == [[0, 1], [3, 4]]
    assert above.tolist() == [[2, 5]]
    others = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), np.zeros(4, int), np.array([0, 1, 2, 4])
    beside, above = neighbours(others, (1, 1))
    assert beside.size == above.size == 0  # of different channels, or not neighbours
    beside, above = neighbours((np.zeros(6, int), np.zeros(6, int), down, right), (1, 2))
    assert beside.tolist() == [[0, 2], [3, 5]]  # a stride apart: what one reads, the other reads for the next pixel
    assert above.tolist() == [[1, 4]]


def test_pairs_of_a_visit_are_even_in_number():
    pairs = np.arange(12).reshape(6, 2)
    assert even(pairs, np.array([3, 1, 3, 1, 3, 2])).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_gradients_take_the_places_of_values_that_nothing_reads_any_more():
    """Three equal blocks: their gradients need no more planes than one block has."""

    def memory(blocks):
        layers = [m for _ in range(blocks) for m in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
        module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 36, CLASSES))
        ours, _, _ = networks_of(module, (4, 6, 6), np.ones(layout_of(module).trainable, bool), 4, lanes_here())
        return len(ours.module.program._memory.spare)

    assert memory(3) == memory(6)


def test_a_plan_merges_relus_and_pools():
    module = build("cnn", (3, 8, 8), CLASSES, 0)
    plan = read_plan(module, layout_of(module), (3, 8, 8))
    kinds = [type(layer).__name__ for layer in plan.layers]
    pair = ["Convolution", "Convolution"]
    assert kinds == [*pair, "Norm", *pair, "Norm", *pair, "Flatten", "Convolution", "Dropout", "Convolution"]
    assert [layer.pooled for layer in plan.convolutions[:4]] == [False, True, False, True]
    assert [layer.relu for layer in plan.convolutions] == [True] * 7 + [False]
    residual = nn.Sequential(Residual(3, 3, 1, True), nn.Flatten(), nn.Linear(192, 2))
    layers = read_plan(residual, layout_of(residual), (3, 8, 8)).layers
    assert [getattr(layer, "relu", None) for layer in layers] == [True, False, True, None, False]
    assert isinstance(layers[2], Norm) and len(layers[2].inputs) == 2
    assert isinstance(layers[0], Convolution)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(192, 2)

    def forward(self, x):
        return self.last(self.conv(self.conv(x)).flatten(1))


CONV = nn.Conv2d(3, 2, 3)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(CONV, nn.Tanh(), nn.Flatten(), nn.Linear(72, 2)), "no kernel for tanh"),
        (nn.Sequential(CONV, nn.Flatten(), nn.Linear(72, 2).requires_grad_(False)), "'2.weight' is frozen"),
        (nn.Sequential(CONV, nn.Flatten(), nn.Dropout(), nn.Linear(72, 2)), "torch's own random generator"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), "no convolution"),
        (nn.Sequential(CONV), "one logit per class"),
        (nn.Sequential(CONV, nn.BatchNorm2d(2, momentum=None), nn.Flatten(), nn.Linear(72, 2)), "momentum of None"),
        (Shared(), "'conv.weight' belongs to 2 layers"),
        (nn.Sequential(CONV, nn.LayerNorm(6), nn.Flatten(), nn.Linear(72, 2)), "LayerNorm"),
    ],
    ids=["tanh", "frozen", "torch's dropout", "perceptron", "no logits", "cumulative norm", "shared", "layer norm"],
)
def test_what_the_kernels_do_not_have_is_named(module, reason):
    with pytest.raises(NotPlanned, match=reason):
        read_plan(module, layout_of(module), (3, 8, 8))


MOMENTUM = {"momentum": 0.9, "nesterov": True, "keep_optimizer": True}
ADAM = {"optimizer": "adamw", "lr": 0.002, "weight_decay": 0.1, "label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("more", "prox", "linear"),
    [
        ({}, 0.0, False),
        (MOMENTUM, 0.3, True),
        ({"momentum": 0.5, "augment": "pad-crop-flip", "weight_decay": 0.01, "clip_norm": 0.5}, 0.0, False),
        (ADAM, 0.0, False),
        ({"momentum": 0.5, "augment": "pad-crop-flip", "sam": 0.2}, 0.0, False),
    ],
    ids=["plain", "nesterov, proximal and linear terms", "augmented, decay, clipped", "adamw, smoothed", "SAM"],
)
def test_a_round_equals_autograd(more, prox, linear):
    setup = setup_of(cnn, **more)
    model, rng = half(setup), np.random.default_rng(2)
    noise = rng.normal(0, 0.01, (2, model.mask.size)).astype(np.float32)
    request = Fit(model, prox=prox, linear=noise[0] if linear else None)
    state = {OPTIMIZER + "momentum": noise[1] * model.mask} if "keep_optimizer" in more else None
    mine, my_workers = answers(Sparse(setup), setup, request, state)
    theirs, their_workers = answers(OneByOne(setup), setup, request, state)
    for one, two in zip(mine, theirs, strict=True):
        assert one.loss == pytest.approx(two.loss, rel=1e-4)
        assert one.rates == two.rates
        near = np.isclose(one.model.weights, two.model.weights, rtol=1e-3, atol=1e-5)
        # Adam's first steps have the size of the rate even where a gradient is nothing but rounding.
        assert near.mean() > 0.99 if more is ADAM else near.all()
        assert not one.model.weights[: one.model.mask.size][~one.model.mask].any()
        assert one.samples == two.samples
    for one, two in zip(my_workers, their_workers, strict=True):
        assert (one.steps, one.epochs) == (two.steps, two.epochs)
        assert one.optimizer.keys() == two.optimizer.keys()
        for name, value in one.optimizer.items():
            assert np.allclose(value, two.optimizer[name], rtol=1e-2, atol=1e-4)


def test_scores_and_dense_models_are_left_to_autograd():
    setup = setup_of(cnn, batch_size=32)
    backend = Sparse(setup)
    dense = model_of(cnn())
    assert not backend.takes(dense)
    assert backend.takes(half(setup, 0.5))
    assert not Sparse(setup_of(cnn, batch_size=1)).takes(half(setup, 0.5))  # one image would fill one lane
    (update, _), _ = answers(backend, setup, Score(half(setup), "squares"))
    assert update.scores[~half(setup).mask].any()


def test_a_worker_scores_the_whole_network_after_training_by_kernels():
    setup = setup_of(cnn, batch_size=32)
    model = half(setup, 0.2)
    scores = []
    for backend in (Sparse(setup), OneByOne(setup)):
        (update, _), (worker, _) = answers(backend, setup, Fit(model))
        scores.append(worker.answer(Score(update.model, "gradient")).scores)
    assert np.allclose(*scores, rtol=1e-2, atol=1e-4)


def test_a_lone_client_has_all_threads_of_autograd():
    backend, model = Sparse(setup_of(cnn, batch_size=32)), half(setup_of(cnn), 0.3)
    assert backend.takes(model, threads=2)
    assert not backend.takes(model, threads=4)


def test_the_back_end_is_chosen_and_compared():
    setup = setup_of(cnn)
    assert choose(setup).name == "sparse"
    backend = Sparse(setup)
    backend._run = lambda *_: 0
    assert "differs" in disagreement(backend, setup) or "loss" in disagreement(backend, setup)


def test_training_with_fixed_norms_is_compared_too(monkeypatch):
    plain, fixed = setup_of(cnn), setup_of(cnn, fixed_norms=0.1)
    assert disagreement(Sparse(fixed), fixed) is None
    forward = Program.forward
    monkeypatch.setattr(
        Program, "forward", lambda self, x, survivors, draws, _: forward(self, x, survivors, draws, False)
    )
    assert disagreement(Sparse(plain), plain) is None
    assert "autograd's" in disagreement(Sparse(fixed), fixed)


@pytest.mark.slow
def test_the_kernels_train_resnet18_as_autograd_does():
    assert choose(setup_of(lambda: build("resnet18", (3, 8, 8), CLASSES, 0))).name == "sparse"


def test_resnet18_is_read_and_its_group_norm_refused_by_name():
    assert Sparse.refusal(setup_of(lambda: build("resnet18", (3, 8, 8), CLASSES, 0))) is None
    assert "group_norm" in Sparse.refusal(setup_of(lambda: build("resnet18-gn", (3, 8, 8), CLASSES, 0)))


def test_a_batch_norm_of_one_value_is_refused_as_by_torch():
    module = nn.Sequential(nn.Conv2d(3, 2, 8), nn.BatchNorm2d(2), nn.Flatten())
    model = model_of(module)
    ours, *_ = networks_of(module, (3, 8, 8), model.mask, 2, lanes_here())
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        ours.module(torch.zeros(1, 3, 8, 8))
    pooled = nn.Sequential(nn.Conv2d(3, 2, 7), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    ours, *_ = networks_of(pooled, (3, 8, 8), model_of(pooled).mask, 2, lanes_here())
    assert ours.module(torch.randn(1, 3, 8, 8)).shape == (1, 2)


def test_a_model_that_diverges_stays_nan_and_leaves_nothing_behind():
    setup = setup_of(cnn)
    used, fresh = Sparse(setup), Sparse(setup)
    model = half(setup)
    huge = model.with_weights(model.weights * np.float32(1e30), True)
    (one, two), _ = answers(used, setup, Fit(huge))
    assert not one.model.finite
    assert not two.model.finite
    assert not np.isfinite(one.loss)
    again, _ = answers(used, setup, Fit(model))
    first, _ = answers(fresh, setup, Fit(model))
    assert all(a.model.same_as(b.model) for a, b in zip(again, first, strict=True))


def test_threads_give_the_same_bytes_as_one(monkeypatch):
    rounds = []
    for cores in (1, 3):
        monkeypatch.setattr(base, "cores_here", lambda cores=cores: cores)
        setup = setup_of(cnn)
        rounds.append(answers(Sparse(setup), setup, Fit(half(setup)), clients=3)[0])
    assert all(one.model.same_as(two.model) for one, two in zip(*rounds, strict=True))


def test_clients_with_masks_of_their_own():
    setup = setup_of(cnn)
    backend, models = Sparse(setup), [half(setup, kept) for kept in (0.2, 0.4, 0.2)]
    with backend.kernels_only():
        for model in models:
            worker = Worker(setup.flat(), setup.samples, np.arange(9), setup.training, 1, 0)
            (update,) = backend.fit([worker], [Fit(model)])
            assert np.array_equal(update.model.mask, model.mask)


def test_a_whole_run_uses_the_kernels_once_it_is_sparse(monkeypatch):
    y = np.arange(96) % CLASSES
    x = np.random.default_rng(0).normal(size=(96, 3, 8, 8)).astype(np.float32) + y[:, None, None, None]
    data = Dataset("pictures", x.astype(np.float32), y, x[:9].astype(np.float32), y[:9])
    config = RunConfig(network="cnn", rounds=2, epochs=1, clients=2, batch_size=32, lr=0.01)
    federation = Simulated(config, data)
    backend = federation.environment.cohort.backend
    assert backend.name == "sparse"
    used = []
    monkeypatch.setattr(backend, "_by_kernels", lambda *args: used.append(1) or Sparse._by_kernels(backend, *args))
    dense = federation.initial()
    sparse = dense.under(np.random.default_rng(0).random(dense.mask.size) < 0.2)
    for model, calls in ((dense, 0), (sparse, 2)):
        assert all(update.finite for update in federation.ask(config.method, 1, model))
        assert len(used) == calls


@pytest.mark.slow
def test_the_kernels_can_be_kept_as_a_code_image():
    from fedsparsify.native.codegen import LINKED, Code

    if not LINKED:
        pytest.skip("code images are made on Linux on x86-64 only")
    image, (start,) = Code(CONVOLUTIONS, lanes_here()).image()
    assert 0 <= start < len(image)
