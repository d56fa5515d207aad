"""Back ends that train all clients of a round as one stack of models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from ...methods import Fit, Request, Score, Update
from ...native.machine import cores_here
from ...notices import notice
from ..graph_layers import NotPlanned
from ..losses import is_plain
from ..stacks.dense import DenseStack
from ..stacks.mapped import MappedStack
from ..stacks.stack import Stack
from ..stacks.trainer import StackedNetwork, Trainer
from ..worker import Worker
from .base import Setup, in_threads

if TYPE_CHECKING:
    from ..gpu.plan import GpuPlan


class Stacked:
    """One stack per core on a CPU, one for all clients on a GPU. Subclasses say how a stack takes a step."""

    name: ClassVar[str]
    checked = True

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.trainers: dict[int, Trainer] = {}

    def network(self, models: int) -> tuple[Stack, StackedNetwork]:
        """A stack of that many models, and the network that takes its training steps."""
        raise NotImplementedError

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, (worker, request) in enumerate(zip(workers, requests, strict=True)):
            kind = isinstance(request, Score), request.power, request.prune_inputs, worker.fixed_norms
            groups.setdefault((self._setup.epochs(request), *kind), []).append(i)
        answers: dict[int, Update] = {}
        for members in groups.values():
            epochs = self._setup.epochs(requests[members[0]])
            chunks = self._chunks(sorted(members, key=lambda i: -workers[i].samples))

            def train(number: int, epochs: int = epochs, chunks: list[list[int]] = chunks) -> list[Update]:
                picked = chunks[number]
                trainer = self._trainer(number, len(picked))
                return trainer.train([workers[i] for i in picked], [requests[i] for i in picked], epochs)

            for picked, updates in zip(chunks, in_threads(train, range(len(chunks)), len(chunks)), strict=True):
                answers |= dict(zip(picked, updates, strict=True))
        return [answers[i] for i in range(len(workers))]

    def _chunks(self, order: list[int]) -> list[list[int]]:
        """Share the clients out, largest first, so that every chunk has about the same work."""
        threads = min(cores_here(), len(order)) if self._setup.on_cpu else 1
        return [order[first::threads] for first in range(threads)]

    def _trainer(self, chunk: int, models: int) -> Trainer:
        """A trainer for that many models, kept for the next round."""
        known = self.trainers.get(chunk)
        if known is None or known.stack.models != models:
            self.trainers[chunk] = Trainer(*self.network(models), self._setup.training, self._setup.needs_keys)
        return self.trainers[chunk]


class Gpu(Stacked):
    """Networks of layers that have Triton kernels."""

    name = "gpu"

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes networks of the layers that the kernels have, on a GPU with triton."""
        if setup.device.type != "cuda":
            return "it trains on a GPU"
        if why := setup.several_inputs():
            return why
        try:
            from ..gpu.plan import read_plan
        except ImportError as error:
            return f"triton cannot be imported: {error}"
        try:
            read_plan(setup.module, setup.samples.x.shape[1:])
            why = setup.unusual()
        except NotPlanned as error:
            why = str(error)
        if why:
            notice(f"this network is not trained by the gpu back end: {why}. A slower one takes its place.")
        return why

    @cached_property
    def plan(self) -> GpuPlan:
        """The layers of the network."""
        from ..gpu.plan import read_plan

        return read_plan(self._setup.module, self._setup.samples.x.shape[1:])

    def takes(self, request: Fit) -> bool:
        """Whether its kernels know the step: powers under SGD, pruned inputs where a convolution comes first."""
        training = self._setup.training
        if request.power != 1 and (training.optimizer != "sgd" or training.sam):
            return False
        return not (request.prune_inputs and self.plan.first.dense)

    def network(self, models: int) -> tuple[Stack, StackedNetwork]:
        """A stack of that many models, and the network that takes its training steps."""
        from ..gpu.stack import GpuStack

        setup, training = self._setup, self._setup.training
        stack = Stack(setup.layout, models, setup.device, self.plan.orders)
        return stack, GpuStack(
            self.plan, stack, setup.batches, training.precision, training.batch_size, training.label_smoothing
        )


class Dense(Stacked):
    """Perceptrons as stacked matrix products."""

    name = "dense"

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes Flatten, Linear, ReLU and Dropout in sequence."""
        if DenseStack.takes(setup.module):
            return setup.several_inputs()
        return "it trains Flatten, Linear, ReLU and Dropout in sequence"

    def network(self, models: int) -> tuple[Stack, StackedNetwork]:
        """A stack of that many models, and the network that takes its training steps."""
        setup = self._setup
        stack = Stack(setup.layout, models, setup.device, DenseStack.orders(setup.module))
        loss = None if is_plain(setup.training) else setup.loss
        return stack, DenseStack(setup.module, stack, setup.batches, loss, setup.training.label_smoothing)


class Mapped(Stacked):
    """Any module whose training step torch.func can map over models."""

    name = "mapped"

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes a GPU. On a CPU, mapped convolutions were measured at 0.65 times the speed of threads."""
        if setup.on_cpu:
            return "it is slower than threads on a CPU"
        if not isinstance(setup.samples.x, torch.Tensor):
            notice("this network trains one client at a time: it takes several inputs.")
            return "it takes one input"
        return None

    def network(self, models: int) -> tuple[Stack, StackedNetwork]:
        """A stack of that many models, and the network that takes its training steps."""
        setup = self._setup
        stack = Stack(setup.layout, models, setup.device)
        return stack, MappedStack(setup.make(), stack, setup.batches, setup.loss)
