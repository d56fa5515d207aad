"""A whole cohort: the answers of many clients to requests that train them.

Clients keep their own order of samples, their own dropout and their own statistics, so each gets what it would have
got alone, up to the rounding of the larger products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cached_property
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import nn

from ..config import Training
from ..keyed import KeyedDropout
from ..methods import Request, Score, Update
from ..native.machine import cores_here
from ..networks import layout_of, model_of
from .any_stack import AnyStack
from .batches import Batches, Turn
from .cpu_trainer import Perceptrons, read_perceptron
from .dense_stack import DenseStack
from .flat import FlatModule
from .stack import Stack
from .trainer import Network, Trainer
from .worker import Samples, Worker

Answer = TypeVar("Answer")


class Cohort:
    """Trains the clients of a round: side by side as one stack, or client after client in threads of one core each.

    Threads never wait for one another inside a round, so a core that another process takes costs its share and not the
    whole.
    """

    def __init__(self, module: nn.Module, samples: Samples, training: Training, device: torch.device) -> None:
        self._module, self._training, self._device = module.to(device), training, device
        self._layout = layout_of(module)
        self._batches = Batches(samples, training.augment != "none")
        self._draws = self._batches.augment or any(isinstance(child, KeyedDropout) for child in module.modules())
        self._trainers: dict[int, Trainer] = {}
        self.one_by_one = self._kind == "any" and not self._can_be_mapped()
        # A CPU gains nothing from mapping convolutions (0.65× measured): there, every thread takes client after client.
        self.mapped = device.type != "cpu"
        self._benches: dict[int, FlatModule] = {}

    @cached_property
    def _kind(self) -> str:
        """Who knows this network: kernels of ours on a CPU or a GPU, or one of the stacks."""
        if self._perceptrons is not None:
            return "cpu"
        if self._device.type == "cuda":
            try:
                from .gpu_stack import plan
            except ImportError:  # no triton
                pass
            else:
                if plan(self._module, self._batches.samples.x.shape[1:]):
                    return "gpu"
        return "dense" if DenseStack.takes(self._module) else "any"

    @cached_property
    def _perceptrons(self) -> Perceptrons | None:
        """The kernels for perceptrons on a CPU; without numba, or an image that it left, there are none."""
        layers = read_perceptron(self._module, self._layout)
        if self._device.type != "cpu" or self._batches.augment or layers is None:
            return None
        try:
            return Perceptrons(layers, self._batches.samples, self._training)
        except ImportError:
            return None

    def _can_be_mapped(self) -> bool:
        """Try one step of two models; a network that cannot be mapped says so once."""
        stack = Stack(self._layout, 2, self._device)
        stack.load([model_of(self._module)] * 2)
        rows = torch.arange(4, device=self._device).view(2, 2) % len(self._batches.samples.y)
        keys = torch.zeros(2, dtype=torch.int64, device=self._device)
        try:
            losses = torch.zeros(2, device=self._device)
            AnyStack(self._module, stack, self._batches).step(Turn(rows, keys, 0, None, 0.0, losses))
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"this network trains one client at a time, it cannot be batched: {reason}", stacklevel=2)
            return False
        return True

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        if self.one_by_one:
            return [worker.answer(request) for worker, request in zip(workers, requests, strict=True)]
        if self._kind == "cpu" or (self._kind == "any" and not self.mapped):
            return self._in_turn(workers, requests)
        groups: dict[tuple[int, bool], list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault((request.epochs or self._training.epochs, isinstance(request, Score)), []).append(i)
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

    def _in_turn(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Client after client, largest first: a thread that is free takes the next."""
        order = sorted(range(len(workers)), key=lambda i: -workers[i].samples)
        threads = min(cores_here(), len(order))
        free: SimpleQueue[int] = SimpleQueue()
        for bench in range(threads):
            free.put(bench)

        def answer(i: int) -> Update:
            bench = free.get()
            try:
                return self._alone(bench, workers[i], requests[i])
            finally:
                free.put(bench)

        answers = dict(zip(order, side_by_side(answer, order, threads), strict=True))
        return [answers[i] for i in range(len(workers))]

    def _alone(self, bench: int, worker: Worker, request: Request) -> Update:
        """One client's answer, in a thread's own memory."""
        if self._perceptrons is not None:
            return self._perceptrons.train(bench, worker, request, request.epochs or self._training.epochs)
        if bench not in self._benches:
            self._benches[bench] = FlatModule(deepcopy(self._module), self._device)
            self._benches[bench].draws = False  # or it could not have been mapped
        worker.network = self._benches[bench]
        return worker.answer(request)

    def _chunks(self, order: list[int]) -> list[list[int]]:
        """Deal the clients, largest first, so that every chunk gets about as much to do."""
        threads = min(cores_here(), len(order)) if self._device.type == "cpu" else 1
        return [order[first::threads] for first in range(threads)]

    def _trainer(self, chunk: int, models: int) -> Trainer:
        """A trainer for so many models, kept for the next round."""
        known = self._trainers.get(chunk)
        if known is None or known.stack.models != models:
            self._trainers[chunk] = Trainer(*self._network(models), self._training, self._draws)
        return self._trainers[chunk]

    def _network(self, models: int) -> tuple[Stack, Network]:
        """Memory for so many models, and the computation on it."""
        if self._kind == "gpu":
            from .gpu_stack import GpuStack, orders, plan

            shape = self._batches.samples.x.shape[1:]
            stack = Stack(self._layout, models, self._device, orders(self._module, shape))
            layers = plan(self._module, shape) or []
            training = self._training
            return stack, GpuStack(layers, stack, self._batches, training.precision, training.batch_size)
        if self._kind == "dense":
            stack = Stack(self._layout, models, self._device, DenseStack.orders(self._module))
            return stack, DenseStack(self._module, stack, self._batches)
        stack = Stack(self._layout, models, self._device)
        return stack, AnyStack(self._module, stack, self._batches)


def side_by_side(train: Callable[[int], Answer], numbers: Sequence[int], threads: int) -> list[Answer]:
    """What some numbers give, in threads of one core each."""
    if threads == 1:
        return [train(number) for number in numbers]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(train, numbers))
    finally:
        torch.set_num_threads(before)
