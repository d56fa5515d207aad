"""A whole cohort as one computation: the answers of many clients to requests that train them, side by side.

Clients keep their own order of samples, their own dropout and their own statistics, so each gets what it would have
got alone, up to the rounding of the larger products.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cached_property

import torch
from torch import nn

from ..config import Training
from ..keyed import KeyedDropout
from ..methods import Request, Score, Update
from ..networks import layout_of, model_of
from .any_stack import AnyStack
from .batches import Batches, Turn
from .dense_stack import DenseStack
from .flat import FlatModule
from .stack import Stack
from .trainer import Network, Trainer
from .worker import Samples, Worker


class Cohort:
    """Trains the clients of a round together; on a CPU, in as many chunks as there are free cores.

    Chunks are threads with one core each: they never wait for one another inside a round, so a core that another
    process takes costs its share and not the whole.
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
        """Which of the stacks knows this network."""
        if self._device.type == "cuda":
            try:
                from .gpu_stack import plan
            except ImportError:  # no triton
                pass
            else:
                if plan(self._module, self._batches.samples.x.shape[1:]):
                    return "gpu"
        return "dense" if DenseStack.takes(self._module) else "any"

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
        groups: dict[tuple[int, bool], list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault((request.epochs or self._training.epochs, isinstance(request, Score)), []).append(i)
        answers: dict[int, Update] = {}
        for (epochs, _), members in groups.items():
            chunks = self._chunks(sorted(members, key=lambda i: -workers[i].samples))

            def train(number: int, picked: list[int], epochs: int = epochs) -> list[Update]:
                if self._kind == "any" and not self.mapped:
                    return [self._alone(number, workers[i], requests[i]) for i in picked]
                trainer = self._trainer(number, len(picked))
                return trainer.train([workers[i] for i in picked], [requests[i] for i in picked], epochs)

            for picked, updates in zip(chunks, side_by_side(train, chunks), strict=True):
                answers |= dict(zip(picked, updates, strict=True))
        return [answers[i] for i in range(len(workers))]

    def _alone(self, thread: int, worker: Worker, request: Request) -> Update:
        """One client's answer, on the thread's own copy of the network."""
        if thread not in self._benches:
            self._benches[thread] = FlatModule(deepcopy(self._module), self._device)
            self._benches[thread].draws = False  # or it could not have been mapped
        worker.network = self._benches[thread]
        return worker.answer(request)

    def _chunks(self, order: list[int]) -> list[list[int]]:
        """Deal the clients, largest first, so that every chunk gets about as much to do."""
        threads = min(free_cores(), len(order)) if self._device.type == "cpu" else 1
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
            return stack, GpuStack(layers, stack, self._batches, self._training.precision)
        if self._kind == "dense":
            stack = Stack(self._layout, models, self._device, DenseStack.orders(self._module))
            return stack, DenseStack(self._module, stack, self._batches)
        stack = Stack(self._layout, models, self._device)
        return stack, AnyStack(self._module, stack, self._batches)


def free_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(train: Callable[[int, list[int]], list[Update]], chunks: list[list[int]]) -> list[list[Update]]:
    """Train the chunks in threads of one core each."""
    if len(chunks) == 1:
        return [train(0, chunks[0])]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(len(chunks)) as pool:
            return list(pool.map(train, range(len(chunks)), chunks))
    finally:
        torch.set_num_threads(before)
