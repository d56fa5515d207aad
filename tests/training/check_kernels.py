"""The GPU's kernels against autograd, on the device that is there; on a CPU under triton's interpreter.

`make kernels` runs every check as a test; `python tests/training/check_kernels.py [NAME …]` runs them without pytest.
The interpreter must be chosen before triton is imported, so nothing here imports it at the top.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsparsify import RunConfig
from fedsparsify.keyed import KeyedDropout
from fedsparsify.methods import Fit, Score
from fedsparsify.model import SparseModel
from fedsparsify.networks import build, layout_of, model_of
from fedsparsify.networks.resnet import Block
from fedsparsify.training.batches import Batches, StepInputs
from fedsparsify.training.fixed_norms import set_training
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.stacks.stack import Stack
from fedsparsify.training.stacks.trainer import Trainer
from fedsparsify.training.worker import Samples, Worker

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODELS = 3


def conv(inputs: int, outputs: int, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: deepcopy(nn.Sequential(*layers))


def fc(shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    return lambda: build("fc", shape, classes, 0)


@dataclass(frozen=True)
class Step:
    """One training step of a network on samples of a shape."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    augment: bool = False
    precision: str = "fp32"
    tolerance: float = 5e-5
    usual: int = 0  # how much larger the usual batch is: kernels are made for it
    fixed_norms: bool = False


def cnn_like(channels: int, bias: bool = True) -> Callable[[], nn.Module]:
    """Pool and norm after a ReLU, pixels into a dense layer, dropout after its ReLU: the order of the paper's cnn."""
    body = [conv(channels, 16), nn.ReLU(), nn.MaxPool2d(2), norm(16), conv(16, 20, bias), nn.ReLU()]
    head = [nn.Flatten(), nn.Linear(20 * 2 * 2, 20), nn.ReLU(), KeyedDropout(0.2, 0), nn.Linear(20, 5)]
    return sequential(*body, *head)


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels if channels % 3 else 3, channels, eps=1e-3)


def resnet_like(normalise: Callable[[int], nn.Module], widths: tuple[int, ...], inputs: int) -> Callable[[], nn.Module]:
    """ResNet-18's layers: blocks with both kinds of shortcuts, and the mean of the last images."""
    body: list[nn.Module] = [nn.Conv2d(inputs, widths[0], 3, padding=1, bias=False), normalise(widths[0]), nn.ReLU()]
    for before, after in pairwise(widths):
        body += [Block(before, before, 1, normalise), Block(before, after, 2, normalise)]
    return sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 5))


class Residual(nn.Module):
    """The sum of two branches that read one value."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module, relu: bool, swapped: bool = False) -> None:
        super().__init__()
        self.inner, self.shortcut, self.relu = inner, shortcut, nn.ReLU() if relu else nn.Identity()
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.swapped:
            return self.relu(self.shortcut(x) + self.inner(x))
        return self.relu(self.inner(x) + self.shortcut(x))


class Thrice(nn.Module):
    """One value is read by three convolutions and by two sums; another is added to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.c = (nn.Conv2d(n, 4, 3, padding=1) for n in (3, 4, 4, 4))
        self.last = nn.Linear(100, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.a(x) + x)
        z = self.b(x) + y + y
        return self.last((z + torch.relu(z) + self.c(x) + x).flatten(1))


def random_residual(seed: int, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    """Convolutions, norms, pools and residual blocks of both kinds in an order drawn at random."""
    draw = np.random.default_rng(seed)

    def chain(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        """A convolution, with a norm or a ReLU before or after it."""
        side = int(draw.choice([1, 3]))
        layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=bool(draw.integers(2)))]
        match int(draw.integers(5)):
            case 0:
                return [norm(inputs), nn.ReLU(), *layers]
            case 1:
                return [*layers, norm(outputs)]
            case 2:
                return [*layers, group_norm(outputs), nn.ReLU()]
            case 3:
                return [*layers, nn.ReLU()]
        return layers

    channels = 6
    layers: list[nn.Module] = [nn.Conv2d(shape[0], channels, 3, int(draw.integers(1, 3)), 1), nn.ReLU()]
    for _ in range(2):
        outputs, stride = int(draw.choice([6, 9])), int(draw.integers(1, 3))
        inner = nn.Sequential(*chain(channels, 5, 1), *chain(5, outputs, stride))
        plain = stride == 1 and outputs == channels
        shortcut: nn.Module = nn.Identity() if plain else nn.Conv2d(channels, outputs, 1, stride)
        if draw.integers(2) and not plain:
            shortcut = nn.Sequential(shortcut, norm(outputs))
        layers.append(Residual(inner, shortcut, bool(draw.integers(2)), bool(draw.integers(2))))
        layers += [nn.MaxPool2d(3, 1, 1)] if draw.integers(3) == 0 else []
        channels = outputs
    return sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


VGG_LIKE = sequential(
    *(conv(3, 8), norm(8), nn.ReLU(), conv(8, 8), nn.ReLU(), nn.MaxPool2d(2)),
    *(conv(8, 24), norm(24), nn.ReLU(), conv(24, 24), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 2, 5)),
)
STEPS = {
    "fc": Step(fc((1, 9, 9), 10), (1, 9, 9), 10, 32),
    "fc on vectors": Step(fc((37,), 3), (37,), 3, 7),
    "fc on colour images": Step(fc((3, 4, 4), 4), (3, 4, 4), 4, 9),
    "fc on augmented colour images": Step(fc((3, 4, 4), 4), (3, 4, 4), 4, 9, augment=True),
    "one dense layer": Step(sequential(nn.Flatten(), nn.Linear(48, 4)), (3, 4, 4), 4, 9),
    "no biases": Step(sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)), (6,), 3, 9),
    "140 samples": Step(sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,), 3, 140),
    "1,100 samples": Step(sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,), 3, 1100),
    "1,100 samples into one layer": Step(sequential(nn.Linear(6, 3)), (6,), 3, 1100),
    "70 classes": Step(sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 70)), (6,), 70, 33),
    "1,100 classes": Step(sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1100)), (6,), 1100, 5),
    "600 inputs to the last layer": Step(sequential(nn.Linear(6, 600), nn.ReLU(), nn.Linear(600, 3)), (6,), 3, 5),
    "dropout": Step(sequential(nn.Linear(6, 40), nn.ReLU(), KeyedDropout(0.4, 1), nn.Linear(40, 3)), (6,), 3, 9),
    "dropout without a ReLU": Step(sequential(nn.Linear(6, 40), KeyedDropout(0.4, 1), nn.Linear(40, 3)), (6,), 3, 9),
    "dropout of an image": Step(
        sequential(
            *(conv(3, 4), nn.ReLU(), KeyedDropout(0.4, 0), nn.MaxPool2d(2), KeyedDropout(0.1, 1), conv(4, 6)),
            *(nn.Flatten(), KeyedDropout(0.4, 2), nn.Linear(24, 9), KeyedDropout(0.3, 3), nn.Linear(9, 3)),
        ),
        *((3, 4, 4), 3, 4),
    ),
    "cnn": Step(cnn_like(3), (3, 4, 4), 5, 5),
    "cnn, fixed norms": Step(cnn_like(3), (3, 4, 4), 5, 5, fixed_norms=True),
    "vgg, fixed norms": Step(VGG_LIKE, (3, 8, 4), 5, 6, fixed_norms=True),
    "resnet, fixed norms": Step(resnet_like(norm, (8, 12), 3), (3, 4, 4), 5, 3, fixed_norms=True),
    "cnn, a tail batch": Step(cnn_like(1), (1, 4, 4), 5, 3, usual=30),
    "cnn without a bias": Step(cnn_like(3, bias=False), (3, 4, 4), 5, 5, augment=True),
    "vgg": Step(VGG_LIKE, (3, 8, 4), 5, 6, augment=True),
    "many rows": Step(
        sequential(conv(1, 4), norm(4), nn.ReLU(), conv(4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)),
        *((1, 8, 8), 3, 5),
    ),
    "20 channels first": Step(sequential(conv(20, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)), (20, 3, 3), 3, 5),
    "100 channels first": Step(sequential(conv(100, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)), (100, 3, 2), 3, 5),
    "resnet": Step(resnet_like(norm, (8, 12), 3), (3, 4, 4), 5, 3),
    "resnet, group norm": Step(resnet_like(group_norm, (6, 9), 3), (3, 5, 3), 5, 3, augment=True),
    "resnet, a tail batch": Step(resnet_like(norm, (5, 7), 1), (1, 3, 4), 5, 3, usual=30),
    "one value read often": Step(sequential(Thrice()), (3, 5, 5), 3, 3),
    "a stem of 7×7 and a pool": Step(
        sequential(
            *(nn.Conv2d(3, 8, 7, 2, 3, bias=False), norm(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
            *(Residual(conv(8, 8), nn.Identity(), True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
        ),
        *((3, 11, 9), 3, 3),
    ),
    "windows without a border": Step(
        sequential(
            *(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 2, 2), nn.ReLU(), nn.Conv2d(6, 5, 5, 3, 4)),
            *(nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(20, 3)),
        ),
        *((3, 9, 10), 3, 3),
    ),
    "norms of groups and of vectors": Step(
        sequential(
            *(conv(3, 20, False), nn.GroupNorm(1, 20), nn.ReLU(), conv(20, 40, False), nn.GroupNorm(20, 40), nn.ReLU()),
            *(
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(40, 9, bias=False),
                nn.BatchNorm1d(9),
                nn.ReLU(),
                nn.Linear(9, 3),
            ),
        ),
        *((3, 4, 4), 3, 5),
    ),
    **{
        f"random residual network {seed}": Step(random_residual(seed, (2, 6, 5), 3), (2, 6, 5), 3, 3)
        for seed in range(5)
    },
    "pixels into a wide last layer": Step(
        sequential(conv(3, 16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 5)), (3, 6, 6), 5, 6
    ),
}
if DEVICE.type == "cuda":  # the interpreter multiplies the bits of a bfloat16 as integers
    whole = (lambda: build("cnn", (3, 32, 32), 10, 0), (3, 32, 32), 10, 32)
    STEPS["the paper's cnn"] = Step(*whole, tolerance=5e-3)
    # In coarser arithmetic some ReLUs and maxima fall the other way, which moves the first layer's gradient most.
    STEPS["fc in bf16"] = Step(fc((3, 4, 4), 4), (3, 4, 4), 4, 9, precision="bf16", tolerance=0.05)
    # The first layers of ResNet-18 are behind eighteen ReLUs.
    for name in ("resnet18", "resnet18-gn"):
        for precision, tolerance in (("fp32", 2e-2), ("tf32", 0.3), ("bf16", 0.8)):
            made = (lambda name=name: build(name, (3, 32, 32), 10, 0)), (3, 32, 32), 10, 16
            STEPS[f"{name} in {precision}"] = Step(*made, precision=precision, tolerance=tolerance)
    STEPS["the paper's cnn in bf16"] = Step(*whole, precision="bf16", tolerance=0.3)


def check_step(case: Step) -> None:
    """Losses, gradients and statistics of one step of several models; then plain SGD in the same pass."""
    from fedsparsify.training.gpu.plan import read_plan
    from fedsparsify.training.gpu.stack import GpuStack

    module = case.make().to(DEVICE)
    plan = read_plan(module, case.shape)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, *case.shape, generator=generator).to(DEVICE)
    batches = Batches(Samples(x, (torch.arange(40) * 29 % case.classes).to(DEVICE)), case.augment)
    start = [filled(module, seed) for seed in range(MODELS)]
    layout = layout_of(module)
    stack = Stack(layout, MODELS, DEVICE, plan.orders)
    stack.load(start)
    ours = GpuStack(plan, stack, batches, case.precision, case.batch + case.usual)
    ours.begin([Fit(model) for model in start])
    gradient = torch.full_like(stack.weights, float("nan"))  # every entry must be written
    rows = torch.randint(0, 40, (MODELS, case.batch), generator=generator).to(DEVICE)
    keys = torch.arange(MODELS, device=DEVICE) * 977 + 5
    losses = torch.zeros(MODELS, device=DEVICE)
    rates = torch.tensor([0.1, 0.2, 0.3], device=DEVICE)
    ours.step(StepInputs(rows, keys, 0, gradient, rates, 0.5, losses, fixed_norms=case.fixed_norms))
    found, after = stack.get_rows(gradient), stack.rows()
    expected = torch.empty_like(found)
    for number, model in enumerate(start):
        plain = deepcopy(module)
        set_training(plain, case.fixed_norms)
        loss, expected[number], values = by_autograd(plain, model, *batches(rows, keys), keys, number)
        assert torch.allclose(losses[number], loss * case.batch, rtol=case.tolerance), (losses[number], loss)
        statistics = slice(layout.trainable, None)
        assert torch.allclose(after[number, statistics], values[statistics], rtol=case.tolerance, atol=case.tolerance)
    for name, span in layout.slices.items():
        if span.stop <= layout.trainable:
            error = (expected[:, span] - found[:, span]).norm() / (expected[:, span].norm() + 1e-2 * expected.norm())
            assert error < case.tolerance, f"{name}: {error:.2e}"
    if ours.plain:  # plain SGD applied at once is the same as the gradient it would have written
        before = stack.get_rows(stack.weights)
        moved = before - rates[:, None] * (found + 0.5 * before)
        ours.step(StepInputs(rows, keys, 0, None, rates, 0.5, losses))
        assert torch.allclose(stack.get_rows(stack.weights), moved, rtol=1e-4, atol=1e-5)


def filled(module: nn.Module, seed: int) -> SparseModel:
    """A model of the module with values that tell every tensor from the next."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            elif tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * (0.3 if tensor.ndim == 1 else 0.1))
                tensor.add_(0.1 if tensor.ndim == 1 else 0)
    return model_of(module)


def by_autograd(
    plain: nn.Module, model: SparseModel, x: torch.Tensor, y: torch.Tensor, keys: torch.Tensor, number: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean loss, flat gradient, and values after one forward pass of the plain module."""
    plain.load_state_dict({name: torch.from_numpy(view.copy()) for name, view in model.tensors().items()}, strict=False)
    for child in plain.modules():
        if isinstance(child, KeyedDropout):
            child.key = keys[number]
    loss = cross_entropy(plain(x[number]), y[number])
    loss.backward()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in plain.parameters() if parameter.grad is not None])
    return loss.detach(), gradient, torch.from_numpy(model_of(plain).weights).to(DEVICE)


@dataclass(frozen=True)
class Training:
    """Some rounds of two clients."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    momentum: float = 0.0
    nesterov: bool = False
    parts: tuple[int, int] = (13, 13)  # samples of each client
    prox: float = 0.0
    squares: bool = False
    linear: bool = False
    more: tuple[tuple[str, object], ...] = ()  # settings of the run
    precision: str = "fp32"
    tolerance: float = 1e-4
    power: float = 1.0
    prune_inputs: bool = False


SMALL_CNN = sequential(
    *(conv(3, 8), nn.ReLU(), nn.MaxPool2d(2), norm(8), nn.Flatten(), nn.Linear(32, 8), nn.ReLU()),
    *(KeyedDropout(0.2, 0), nn.Linear(8, 4)),
)
RESIDUAL = sequential(
    *(conv(3, 4), norm(4), nn.ReLU(), Residual(nn.Conv2d(4, 4, 1), group_norm(4), True)),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
)
SMALL_FC = sequential(nn.Flatten(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
SCHEDULES = (
    *(("rounds", 4), ("lr_schedule", "cosine"), ("lr_final", 0.1)),
    *(("lr_schedule_local", "linear"), ("lr_final_local", 0.2)),
)
TRAININGS = {
    "plain": Training(SMALL_FC, (3, 2, 2)),
    "plain, unequal clients": Training(SMALL_FC, (3, 2, 2), parts=(15, 10)),
    "momentum": Training(SMALL_FC, (3, 2, 2), 0.5),
    "prox": Training(SMALL_FC, (3, 2, 2), prox=0.5),
    "squares": Training(SMALL_FC, (3, 2, 2), 0.5, squares=True),
    "cnn, Nesterov": Training(SMALL_CNN, (3, 4, 4), 0.9, nesterov=True),
    "cnn, unequal clients, prox": Training(SMALL_CNN, (3, 4, 4), 0.5, parts=(15, 10), prox=0.5),
    "cnn, squares": Training(SMALL_CNN, (3, 4, 4), squares=True),
    "decay, schedules": Training(SMALL_FC, (3, 2, 2), more=(*SCHEDULES, ("weight_decay", 0.1))),
    "schedules, unequal clients": Training(SMALL_FC, (3, 2, 2), parts=(15, 10), more=SCHEDULES),
    "cnn, all terms": Training(
        *(SMALL_CNN, (3, 4, 4), 0.9),
        nesterov=True,
        prox=0.5,
        linear=True,
        more=(*SCHEDULES, ("weight_decay", 0.1), ("label_smoothing", 0.1)),
    ),
    "label smoothing": Training(SMALL_FC, (3, 2, 2), more=(("label_smoothing", 0.1),)),
    "cnn, clipped": Training(SMALL_CNN, (3, 4, 4), 0.5, linear=True, more=(("clip_norm", 0.2),)),
    "residual, unequal clients": Training(RESIDUAL, (3, 3, 3), 0.5, parts=(9, 6), more=(("weight_decay", 0.1),)),
    "SAM": Training(SMALL_FC, (3, 2, 2), more=(("sam", 0.3),)),
    "residual, SAM, unequal clients": Training(
        RESIDUAL, (3, 3, 3), 0.5, parts=(9, 6), more=(("weight_decay", 0.1), ("sam", 0.3))
    ),
    "residual, fixed norms in two rounds": Training(
        RESIDUAL, (3, 3, 3), 0.5, parts=(9, 6), more=(("rounds", 4), ("fixed_norms", 0.5))
    ),
    "powers": Training(SMALL_FC, (3, 2, 2), 0.5, power=1.25, linear=True, more=(("weight_decay", 0.1),)),
    "powers, unequal clients, prox": Training(SMALL_FC, (3, 2, 2), parts=(15, 10), prox=0.5, power=1.5),
    "powers, clipped": Training(SMALL_FC, (3, 2, 2), power=1.5, more=(("clip_norm", 0.2),)),
    "SparsyFed's step": Training(RESIDUAL, (3, 3, 3), parts=(9, 6), power=1.25, prune_inputs=True),
    "AdamW": Training(SMALL_FC, (3, 2, 2), linear=True, more=(*SCHEDULES, ("optimizer", "adamw"))),
    "Adam, unequal clients": Training(SMALL_FC, (3, 2, 2), parts=(15, 10), more=(("optimizer", "adam"),)),
}
if DEVICE.type == "cuda":
    TRAININGS["bf16"] = Training(SMALL_FC, (3, 2, 2), 0.5, parts=(15, 10), precision="bf16", tolerance=2e-2)
    # Of equal clients: epochs are captured, the first of a request and the others.
    TRAININGS["residual"] = Training(RESIDUAL, (3, 3, 3), 0.5)
    TRAININGS["SparsyFed's step, equal clients"] = Training(RESIDUAL, (3, 3, 3), power=1.25, prune_inputs=True)
    TRAININGS["powers in bf16"] = Training(SMALL_FC, (3, 2, 2), power=1.25, precision="bf16", tolerance=2e-2)


NOT_TAKEN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a dense layer along one axis": (sequential(nn.Linear(5, 8), nn.Flatten(), nn.Linear(24, 3)), (3, 5)),
    "flattened in part": (sequential(nn.Flatten(1, 2), nn.Linear(4, 1), nn.Flatten(), nn.Linear(12, 3)), (3, 4, 4)),
    "a dilated pool": (sequential(conv(3, 4), nn.MaxPool2d(2, dilation=2), nn.Flatten(), nn.Linear(4, 3)), (3, 4, 4)),
    "an odd image": (sequential(conv(3, 4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)), (3, 5, 5)),
    "dropout of all": (sequential(nn.Linear(5, 8), KeyedDropout(1.0, 0), nn.Linear(8, 3)), (5,)),
}


def check_training(case: Training) -> None:
    """Four rounds of two epochs through the trainer, each ending in a smaller batch, against the worker.

    On a GPU a graph is captured in the second epoch and replayed in all that follow, at other learning rates.
    """
    from fedsparsify.training.gpu.plan import read_plan
    from fedsparsify.training.gpu.stack import GpuStack

    module, generator = case.make().to(DEVICE), torch.Generator().manual_seed(0)
    x = torch.randn(sum(case.parts), *case.shape, generator=generator).to(DEVICE)
    data = Samples(x, torch.randint(0, 4, (len(x),), generator=generator).to(DEVICE))
    start = filled(module, 0)
    start = start.under(np.arange(start.layout.trainable) % 3 > 0)
    linear = np.random.default_rng(1).normal(scale=0.1, size=start.layout.trainable) if case.linear else None
    request = (
        Score(start, "squares")
        if case.squares
        else Fit(start, prox=case.prox, linear=linear, power=case.power, prune_inputs=case.prune_inputs)
    )
    config = RunConfig(
        epochs=2,
        batch_size=8,
        lr=0.05,
        momentum=case.momentum,
        nesterov=case.nesterov,
        keep_optimizer=True,
        **dict(case.more),
    )
    plan = read_plan(module, case.shape)
    stack = Stack(start.layout, 2, DEVICE, plan.orders)
    network = GpuStack(plan, stack, Batches(data, False), case.precision, 8, config.label_smoothing)
    trainer = Trainer(stack, network, config, True)
    mine = np.split(np.arange(len(x)), [case.parts[0]])
    alone: list[Worker | None] = [None, None]
    stacked: list[Worker | None] = [None, None]

    def next_round(round: int, before: list[Worker | None]) -> list[Worker]:
        """The clients, with the optimiser's state that they kept."""
        workers = []
        for k, (part, last) in enumerate(zip(mine, before, strict=True)):
            kept = {f"optimizer.{name}": values for name, values in last.optimizer.items()} if last else None
            workers.append(Worker(FlatModule(case.make(), DEVICE), data, part, config, round, k, kept))
        return workers

    for round in (1, 2, 3, 4):
        alone, stacked = next_round(round, alone), next_round(round, stacked)
        for worker, found in zip(alone, trainer.train(stacked, [request] * 2, 2), strict=True):
            expected = worker.answer(request)
            close(found.model.weights, expected.model.weights, case.tolerance)
            assert not found.model.weights[: start.layout.trainable][~start.mask].any()
            assert abs(expected.loss - found.loss) < 10 * case.tolerance
            assert found.rates == expected.rates
            if case.squares:
                close(found.scores, expected.scores, case.tolerance)


def close(found: np.ndarray | None, expected: np.ndarray | None, tolerance: float) -> None:
    assert found is not None and expected is not None
    np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=tolerance)


def main(names: list[str]) -> None:
    torch.backends.cudnn.allow_tf32 = False  # the reference in full precision
    if DEVICE.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    failed = []
    for cases, check in ((STEPS, check_step), (TRAININGS, check_training)):
        for name, case in cases.items():
            if names and name not in names:
                continue
            began = time.perf_counter()
            try:
                check(case)
            except Exception as error:  # the other checks are worth having all the same
                failed.append(name)
                print(f"{name}: {type(error).__name__}: {str(error).strip()[:400]}", flush=True)
            else:
                print(f"{name}: equal, {time.perf_counter() - began:.1f} s", flush=True)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
