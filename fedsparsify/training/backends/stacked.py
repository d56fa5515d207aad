"""Back ends that train all clients of a round as one stack of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from ...methods import Request, Score, Update
from ...native.machine import cores_here
from ..stacks.dense import DenseStack
from ..stacks.mapped import AnyStack
from ..stacks.stack import Stack
from ..stacks.trainer import Network, Trainer
from ..worker import Worker
from .base import Setup, side_by_side


class Stacked:
    """One stack per core on a CPU, one for all on a GPU. What it computes, a subclass says."""

    name: ClassVar[str]
    checked = True

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.trainers: dict[int, Trainer] = {}

    def network(self, models: int) -> tuple[Stack, Network]:
        """Memory for so many models, and the computation on it."""
        raise NotImplementedError

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault((self._setup.epochs(request), isinstance(request, Score)), []).append(i)
        answers: dict[int, Update] = {}
        for (epochs, _), members in groups.items():
            chunks = self._chunks(sorted(members, key=lambda i: -workers[i].samples))

            def train(number: int, epochs: int = epochs, chunks: list[list[int]] = chunks) -> list[Update]:
                picked = chunks[number]
                trainer = self._trainer(number, len(picked))
                return trainer.train([workers[i] for i in picked], [requests[i] for i in picked], epochs)

            for picked, updates in zip(chunks, side_by_side(train, range(len(chunks)), len(chunks)), strict=True):
                answers |= dict(zip(picked, updates, strict=True))
        return [answers[i] for i in range(len(workers))]

    def _chunks(self, order: list[int]) -> list[list[int]]:
        """Deal the clients, largest first, so that every chunk gets about as much to do."""
        threads = min(cores_here(), len(order)) if self._setup.device.type == "cpu" else 1
        return [order[first::threads] for first in range(threads)]

    def _trainer(self, chunk: int, models: int) -> Trainer:
        """A trainer for so many models, kept for the next round."""
        known = self.trainers.get(chunk)
        if known is None or known.stack.models != models:
            self.trainers[chunk] = Trainer(*self.network(models), self._setup.training, self._setup.draws_keys)
        return self.trainers[chunk]


class Gpu(Stacked):
    """Sequential networks by Triton kernels."""

    name = "gpu"

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """For networks of the layers that the kernels know; without triton there is none."""
        if setup.device.type != "cuda":
            return None
        try:
            from ..gpu.stack import plan
        except ImportError:
            return None
        return cls(setup) if plan(setup.module, setup.samples.x.shape[1:]) else None

    def network(self, models: int) -> tuple[Stack, Network]:
        """Memory for so many models, and the computation on it."""
        from ..gpu.stack import GpuStack, orders, plan

        setup, shape = self._setup, self._setup.samples.x.shape[1:]
        stack = Stack(setup.layout, models, setup.device, orders(setup.module, shape))
        layers = plan(setup.module, shape) or []
        return stack, GpuStack(layers, stack, setup.batches, setup.training.precision, setup.training.batch_size)


class Dense(Stacked):
    """Perceptrons as stacked matrix products."""

    name = "dense"

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """For Flatten, Linear, ReLU and Dropout in sequence."""
        return cls(setup) if DenseStack.takes(setup.module) else None

    def network(self, models: int) -> tuple[Stack, Network]:
        """Memory for so many models, and the computation on it."""
        setup = self._setup
        stack = Stack(setup.layout, models, setup.device, DenseStack.orders(setup.module))
        return stack, DenseStack(setup.module, stack, setup.batches)


class Mapped(Stacked):
    """Any module whose training step torch.func can map over models."""

    name = "mapped"

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """For a GPU. A CPU gains nothing from mapping convolutions: 0.65 times the speed of threads was measured."""
        return cls(setup) if setup.device.type != "cpu" else None

    def network(self, models: int) -> tuple[Stack, Network]:
        """Memory for so many models, and the computation on it."""
        stack = Stack(self._setup.layout, models, self._setup.device)
        return stack, AnyStack(self._setup.make(), stack, self._setup.batches)
