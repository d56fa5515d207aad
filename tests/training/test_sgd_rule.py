"""The local training step, wherever it is repeated for speed, ≡ `sgd_reference.py`.

Two clients train a linear classifier, whose gradient has a closed form. Each client's batch is all of its samples, so
that every epoch is one step and the order of the samples does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sgd_reference import Doubles, Rule, adam_step, sgd_step, uphill
from torch import nn
from torch.nn.functional import cross_entropy

from fedsparsify import RunConfig
from fedsparsify.errors import ConfigError
from fedsparsify.methods import Fit, Request, Score, Update
from fedsparsify.native.machine import lanes_here
from fedsparsify.networks import model_of
from fedsparsify.training.backends.autograd import OneByOne, Threads
from fedsparsify.training.backends.base import Setup
from fedsparsify.training.backends.native import Native
from fedsparsify.training.backends.stacked import Dense, Mapped
from fedsparsify.training.batches import Batches
from fedsparsify.training.flat import FlatModule
from fedsparsify.training.native.perceptrons import Perceptrons, read_perceptron
from fedsparsify.training.stacks.stack import Stack
from fedsparsify.training.stacks.trainer import Trainer
from fedsparsify.training.worker import Samples, Worker

INPUTS, CLASSES, STEPS = 11, 5, 4
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A rule, and the state that it starts from."""

    rule: Rule
    pruned: bool = False
    kept: bool = False  # the clients have the optimiser's state of the round before
    linear: bool = False  # the clients' losses have a linear term
    squares: bool = False  # squared gradients are asked for
    samples: tuple[int, int] = (6, 6)  # of each client; a stack steps with models of unequal clients one by one
    local: tuple[str, tuple[float, ...]] = ("constant", (1, 1, 1, 1))  # a schedule within a round, and its factors
    apart: bool = False  # the clients are in rounds with different rates, as in a sweep of runs of unequal length
    smoothing: float = 0.0  # of labels


PLAIN, MOMENTUM, NESTEROV = Rule(), Rule(momentum=0.5), Rule(momentum=0.9, nesterov=True)
DECAY = Rule(weight_decay=0.2)
ADAM, ADAMW = Rule(lr=0.05, optimizer="adam"), Rule(lr=0.05, optimizer="adamw", weight_decay=0.3)
FALLING = ("linear", (1, 0.75, 0.5, 0.25))
CURVED = ("cosine", (1, 0.8125, 0.4375, 0.25))  # ¼ + ¾ · (1 + cos 60°) / 2 at the second step
CASES = {
    "plain": Case(PLAIN),
    "plain, pruned": Case(PLAIN, pruned=True),
    "plain, pruned, unequal": Case(PLAIN, pruned=True, samples=(6, 4)),
    "momentum": Case(MOMENTUM),
    "momentum, pruned, unequal": Case(MOMENTUM, pruned=True, samples=(6, 4)),
    "kept momentum, pruned": Case(MOMENTUM, pruned=True, kept=True),
    "Nesterov": Case(NESTEROV),
    "Nesterov, kept momentum, pruned, unequal": Case(NESTEROV, True, True, samples=(6, 4)),
    "prox": Case(replace(PLAIN, prox=0.7)),
    "prox, pruned, unequal": Case(replace(PLAIN, prox=0.7), pruned=True, samples=(6, 4)),
    "prox, Nesterov, kept momentum, pruned": Case(replace(NESTEROV, prox=0.7), True, True),
    "linear": Case(PLAIN, linear=True),
    "linear, pruned, unequal": Case(PLAIN, pruned=True, linear=True, samples=(6, 4)),
    "linear, Nesterov, kept momentum, pruned": Case(NESTEROV, True, True, linear=True),
    "linear, prox, momentum, pruned": Case(replace(MOMENTUM, prox=0.7), pruned=True, linear=True),
    "decay": Case(DECAY),
    "decay, pruned, unequal": Case(DECAY, pruned=True, samples=(6, 4)),
    "decay, prox, linear, Nesterov, pruned": Case(replace(NESTEROV, prox=0.7, weight_decay=0.2), True, linear=True),
    "decay, falling rate": Case(DECAY, local=FALLING),
    "falling rate, pruned": Case(PLAIN, pruned=True, local=FALLING),
    "cosine, momentum, unequal": Case(MOMENTUM, samples=(6, 4), local=CURVED),
    "two rates": Case(DECAY, pruned=True, apart=True),
    "two rates, Nesterov, falling": Case(NESTEROV, local=FALLING, apart=True),
    "clipped": Case(replace(PLAIN, clip_norm=0.3), pruned=True),
    "clipped, all terms, unequal": Case(
        replace(NESTEROV, clip_norm=0.3, prox=0.7, weight_decay=0.2), True, True, linear=True, samples=(6, 4)
    ),
    "SAM": Case(replace(PLAIN, sam=0.4)),
    "SAM, pruned, unequal": Case(replace(DECAY, sam=0.4), pruned=True, samples=(6, 4)),
    "SAM, all terms": Case(
        replace(NESTEROV, sam=0.4, clip_norm=0.3, prox=0.7, weight_decay=0.2), True, True, linear=True, samples=(6, 4)
    ),
    "SAM, AdamW, pruned, two rates": Case(replace(ADAMW, sam=0.4), pruned=True, apart=True),
    "SAM, squares, momentum, pruned": Case(replace(MOMENTUM, sam=0.4), pruned=True, squares=True),
    "smoothed labels": Case(PLAIN, smoothing=0.2),
    "smoothed labels, momentum, pruned, unequal": Case(MOMENTUM, pruned=True, samples=(6, 4), smoothing=0.2),
    "Adam": Case(ADAM),
    "Adam, decay, pruned, unequal": Case(replace(ADAM, weight_decay=0.2), pruned=True, samples=(6, 4)),
    "Adam, kept moments, clipped, linear": Case(replace(ADAM, clip_norm=0.3), True, True, linear=True),
    "AdamW, two rates, pruned": Case(ADAMW, pruned=True, apart=True),
    "AdamW, kept moments, falling, unequal": Case(ADAMW, True, True, samples=(6, 4), local=FALLING),
    "squares": Case(PLAIN, squares=True),
    "squares, momentum, pruned": Case(MOMENTUM, pruned=True, squares=True),
    "squares, Nesterov, pruned, unequal": Case(NESTEROV, pruned=True, squares=True, samples=(6, 4)),
}


class Problem:
    """Two clients of a case, their samples and the model that both start from."""

    def __init__(self, case: Case) -> None:
        self.case, rng = case, np.random.default_rng(7)
        rule = case.rule
        self.training = RunConfig(
            **{
                name: getattr(rule, name) for name in ("lr", "momentum", "nesterov", "weight_decay", "clip_norm", "sam")
            },
            optimizer=rule.optimizer,
            label_smoothing=case.smoothing,
            lr_schedule_local=case.local[0],
            lr_final_local=case.local[1][-1],
            **({"rounds": 2, "lr_schedule": "exponential", "lr_final": 0.5} if case.apart else {}),
            epochs=STEPS,
            batch_size=6,
            keep_optimizer=case.kept,
            augment="none",
        )
        count = sum(case.samples)
        self.x = rng.normal(size=(count, INPUTS)).astype(np.float32)
        self.y = rng.integers(0, CLASSES, count)
        self.parts = np.split(np.arange(count), [case.samples[0]])
        model = model_of(self.network())
        self.model = model.under(rng.random(model.mask.size) < 0.5) if case.pruned else model
        self.linear = rng.normal(size=(2, model.mask.size)).astype(np.float32)  # pruned entries too
        names = ("momentum",) if rule.optimizer == "sgd" else ("first", "second")
        state = {name: np.abs(rng.normal(size=model.mask.size)) * self.model.mask * case.kept for name in names}
        self.state = state if rule.optimizer == "sgd" else state | {"steps": np.array([3.0 * case.kept])}

    @staticmethod
    def network() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES))

    @property
    def setup(self) -> Setup:
        return Setup(self.network, Samples.on(CPU, self.x, self.y), self.training, CPU)

    @property
    def requests(self) -> list[Request]:
        """One per client; only the second has a linear term where it is plain SGD."""
        if self.case.squares:
            return [Score(self.model, "squares")] * 2
        return [Fit(self.model, prox=self.case.rule.prox, linear=term) for term in self.terms()]

    def terms(self) -> list[Doubles | None]:
        """The linear term of each client; that of the first is left out where there is no momentum."""
        if not self.case.linear:
            return [None, None]
        return [self.linear[0] if self.case.rule.momentum else None, self.linear[1]]

    def workers(self, device: torch.device = CPU) -> list[Worker]:
        network, samples = FlatModule(self.network(), device), Samples.on(device, self.x, self.y)
        state = {f"optimizer.{name}": values.astype(np.float32) for name, values in self.state.items()}
        return [
            Worker(network, samples, part, self.training, 1 + k * self.case.apart, k, state)
            for k, part in enumerate(self.parts)
        ]

    def rules(self, client: int) -> list[Rule]:
        """The rule of each of a client's steps."""
        lr = self.case.rule.lr * (0.5 if self.case.apart and client else 1)
        return [replace(self.case.rule, lr=lr * factor) for factor in self.case.local[1]]

    def gradient(self, values: Doubles, part: np.ndarray) -> Doubles:
        """Of the mean cross entropy of a linear classifier, in closed form."""
        tensors = self.model.layout.views(values)
        logits = self.x[part] @ tensors["1.weight"].T + tensors["1.bias"]
        d = np.exp(logits - logits.max(1, keepdims=True))
        d /= d.sum(1, keepdims=True)
        d[np.arange(len(part)), self.y[part]] -= 1 - self.case.smoothing
        d -= self.case.smoothing / CLASSES
        d /= len(part)
        return np.concatenate([(d.T @ self.x[part]).ravel(), d.sum(0)])


@dataclass(frozen=True)
class Trained:
    """A client after its steps. None: the implementation does not say."""

    weights: Doubles
    state: dict[str, Doubles] | None
    squares: Doubles | None
    rates: float | None = None


def by_reference(problem: Problem) -> list[Trained]:
    trained, mask = [], problem.model.mask
    for client, (part, term) in enumerate(zip(problem.parts, problem.terms(), strict=True)):
        start = problem.model.weights.astype(np.float64)
        weights, state, total = start, problem.state, np.zeros_like(start)
        linear, rules = 0.0 if term is None else term, problem.rules(client)
        for rule in rules:
            gradient = problem.gradient(weights, part)
            if rule.sam:
                gradient = problem.gradient(uphill(weights, gradient, mask, rule), part)
            if rule.optimizer == "sgd":
                weights, velocity, squares = sgd_step(weights, gradient, state["momentum"], start, mask, rule, linear)
                state, total = {"momentum": velocity}, total + squares
            else:
                steps, moments = state["steps"] + 1, (state["first"], state["second"])
                weights, moments = adam_step(weights, gradient, moments, int(steps[0]), start, mask, rule, linear)
                state = {"first": moments[0], "second": moments[1], "steps": steps}
        trained.append(Trained(weights, state, total, sum(rule.lr for rule in rules)))
    return trained


def results(workers: list[Worker], updates: list[Update]) -> list[Trained]:
    return [
        Trained(
            update.model.weights,
            {name: values.cpu().numpy() for name, values in worker.optimizer.items()},
            update.scores,
            update.rates,
        )
        for worker, update in zip(workers, updates, strict=True)
    ]


def by_backend(make: Callable[[Setup], object]) -> Callable[[Problem], list[Trained]]:
    """The two clients, trained by a back end."""

    def train(problem: Problem) -> list[Trained]:
        workers = problem.workers()
        return results(workers, make(problem.setup).fit(workers, problem.requests))

    return train


def by_native(lanes: int) -> Callable[[Problem], list[Trained]]:
    """The native kernels, at one width of vectors."""

    def make(setup: Setup) -> Native:
        backend, layers = Native(setup), read_perceptron(setup.module, setup.layout)
        backend.kernels = Perceptrons(layers, setup.samples, setup.training, lanes)
        return backend

    return by_backend(make)


TORCH: dict[str, Callable[[object, Rule], torch.optim.Optimizer]] = {
    "sgd": lambda p, rule: torch.optim.SGD(
        p, rule.lr, rule.momentum, nesterov=rule.nesterov, weight_decay=rule.weight_decay
    ),
    "adam": lambda p, rule: torch.optim.Adam(p, rule.lr, weight_decay=rule.weight_decay),
    "adamw": lambda p, rule: torch.optim.AdamW(p, rule.lr, weight_decay=rule.weight_decay),
}


def by_flower_hooks(problem: Problem) -> list[Trained]:
    """A user's own loop under `sparse_mod`: torch's optimiser, with the masks and the proximal term as hooks."""
    from fedsparsify.federation.flower.hooks import GradientMask

    rule, trained = problem.case.rule, []
    for client, (part, request) in enumerate(zip(problem.parts, problem.requests, strict=True)):
        module = problem.network()
        tensors = {name: torch.from_numpy(value.copy()) for name, value in problem.model.tensors().items()}
        module.load_state_dict(tensors)
        optimizer = TORCH[rule.optimizer](module.parameters(), rule)
        with GradientMask(request):
            for now in problem.rules(client):
                optimizer.param_groups[0]["lr"] = now.lr
                optimizer.zero_grad()
                logits, labels = module(torch.from_numpy(problem.x[part])), torch.from_numpy(problem.y[part])
                cross_entropy(logits, labels, label_smoothing=problem.case.smoothing).backward()
                if rule.clip_norm:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), rule.clip_norm)
                optimizer.step()
        trained.append(Trained(model_of(module).weights, None, None))
    return trained


def by_gpu_stack(problem: Problem) -> list[Trained]:
    """The GPU's kernels, on a GPU or under triton's interpreter."""
    from fedsparsify.training.gpu.plan import read_plan
    from fedsparsify.training.gpu.stack import GpuStack

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module, samples = problem.network(), Samples.on(device, problem.x, problem.y)
    plan = read_plan(module, (INPUTS,))
    stack = Stack(problem.model.layout, 2, device, plan.orders)
    network = GpuStack(plan, stack, Batches(samples, False), "fp32", 6, problem.case.smoothing)
    workers = problem.workers(device)
    return results(
        workers,
        Trainer(stack, network, problem.training, False).train(workers, problem.requests, problem.training.epochs),
    )


IMPLEMENTATIONS: dict[str, Callable[[Problem], list[Trained]]] = {
    "worker": by_backend(OneByOne),
    "threads": by_backend(Threads),
    "dense stack": by_backend(Dense),
    "mapped stack": by_backend(Mapped),
    **{f"native, {lanes} lanes": by_native(lanes) for lanes in (16, 8, 4)},
}


def uses_state(rule: Rule) -> bool:
    return rule.optimizer != "sgd" or rule.momentum > 0


def check(received: list[Trained], problem: Problem) -> None:
    for found, expected in zip(received, by_reference(problem), strict=True):
        np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-6)
        assert not found.weights[~problem.model.mask].any()
        if found.state is not None:
            assert set(found.state) == (set(expected.state) if uses_state(problem.case.rule) else set())
            for name, values in found.state.items():
                np.testing.assert_allclose(values, expected.state[name], rtol=1e-4, atol=1e-6, err_msg=name)
                assert name == "steps" or not values[~problem.model.mask].any()
        if found.rates is not None:
            assert found.rates == pytest.approx(expected.rates)
        if problem.case.squares and found.squares is not None:
            np.testing.assert_allclose(found.squares, expected.squares, rtol=1e-4, atol=1e-7)


def test_a_step_by_hand():
    """One kept weight and one pruned; the anchor is the start, so that the proximal term is zero."""
    weights, gradient, mask = np.array([1.0, 0.0]), np.array([2.0, 3.0]), np.array([True, False])
    velocity = np.array([4.0, 0.0])
    rule = Rule(lr=0.5, momentum=0.25, prox=8)
    after, speed, squares = sgd_step(weights, gradient, velocity, weights, mask, rule)
    assert (after.tolist(), speed.tolist(), squares.tolist()) == ([-0.5, 0], [3, 0], [4, 9])
    after, _, _ = sgd_step(weights, gradient, velocity, weights, mask, replace(rule, nesterov=True))
    assert after.tolist() == [1 - 0.5 * (2 + 0.25 * 3), 0]
    after, _, squares = sgd_step(weights, gradient, 0 * velocity, weights, mask, rule, np.array([6.0, 7.0]))
    assert (after.tolist(), squares.tolist()) == ([1 - 0.5 * (2 + 6), 0], [4, 9])
    after, _, _ = sgd_step(weights, gradient, 0 * velocity, np.array([0.75, 0]), mask, rule)
    assert after.tolist() == [1 - 0.5 * (2 + 8 * 0.25), 0]


def marks(implementation: str) -> object:
    """Kernels of other widths than this machine's take longer to compile than their tests to run."""
    other = implementation.startswith("native") and implementation != f"native, {lanes_here()} lanes"
    return pytest.mark.slow if other else ()


@pytest.mark.parametrize(
    ("implementation", "case"),
    [
        pytest.param(implementation, name, marks=marks(implementation))
        for implementation in IMPLEMENTATIONS
        for name, case in CASES.items()
        if not (implementation.startswith("native") and Native.refusal_of(Problem(case).training))
    ],
)
def test_the_rule_is_the_reference(implementation, case):
    problem = Problem(CASES[case])
    check(IMPLEMENTATIONS[implementation](problem), problem)


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if not (case.squares or case.kept or case.rule.sam)]
)
def test_a_users_own_optimiser_under_the_mod_follows_the_rule(case):
    pytest.importorskip("flwr")
    problem = Problem(CASES[case])
    check(by_flower_hooks(problem), problem)


def test_a_linear_term_that_a_users_loop_cannot_add_is_refused():
    pytest.importorskip("flwr")
    from fedsparsify.federation.flower.hooks import GradientMask

    problem = Problem(CASES["linear"])
    with (
        pytest.raises(ConfigError, match=r"used no PyTorch module whose parameters"),
        GradientMask(problem.requests[1]),
    ):
        nn.Linear(2, 2)(torch.zeros(1, 2))
    with GradientMask(problem.requests[0]):
        nn.Linear(2, 2)(torch.zeros(1, 2))


@pytest.mark.parametrize("implementation", [pytest.param(name, marks=marks(name)) for name in IMPLEMENTATIONS])
def test_the_rate_falls_over_the_batches_of_all_epochs(implementation):
    """Ten samples are three batches in each of two epochs, four samples are one: the models' rates differ."""
    problem = Problem(Case(MOMENTUM, pruned=True, samples=(10, 4)))
    problem.training = replace(problem.training, epochs=2, batch_size=4, lr_schedule_local="linear", lr_final_local=0.2)
    expected = by_backend(OneByOne)(problem)
    assert [one.rates for one in expected] == [pytest.approx(0.1 * 6 * 0.6), pytest.approx(0.1 * 2 * 0.6)]
    for one, other in zip(IMPLEMENTATIONS[implementation](problem), expected, strict=True):
        np.testing.assert_allclose(one.weights, other.weights, rtol=1e-4, atol=1e-6)
        assert one.rates == other.rates
    constant = replace(problem.training, lr_schedule_local="constant", lr_final_local=1.0)
    problem.training = constant
    assert abs(by_backend(OneByOne)(problem)[0].weights - expected[0].weights).max() > 1e-3


@pytest.mark.kernels
@pytest.mark.parametrize("case", CASES)
def test_the_gpus_rule_is_the_reference(case, monkeypatch):
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is no GPU: `make kernels` sets TRITON_INTERPRET=1")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    problem = Problem(CASES[case])
    check(by_gpu_stack(problem), problem)
