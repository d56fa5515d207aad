"""Epochs of a stack of models: step by step, or on a GPU as one captured graph an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from ... import arrays
from ...keyed import KEYS, STRIDE
from ...methods import Request, Update
from ..batches import Step, Turn, steps
from ..settings import Training
from ..worker import Worker
from .sgd import SGD, FusedSGD
from .stack import Stack


class Network(Protocol):
    """Something that can take one training step of many models."""

    def step(self, turn: Turn) -> None:
        """Gradients of the models from `start` into a buffer, or applied at once; losses added up."""


@runtime_checkable
class OnGpu(Protocol):
    """A network with kernels of its own: it keeps a copy of the weights in its compute type."""

    shadow: torch.Tensor

    @property
    def plain(self) -> bool:
        """Whether it can apply plain SGD by itself."""

    def refresh(self) -> None:
        """Bring the copy up to date."""

    def compile(self, sizes: Iterable[int], into: torch.Tensor | None) -> None:
        """Make the kernels for batches of these sizes."""


class Trainer:
    """Trains so many models at a time, round after round, in the same memory."""

    def __init__(self, stack: Stack, network: Network, training: Training, draws: bool) -> None:
        self.stack, self._network, self._training, self._draws = stack, network, training, draws
        self._sgd = SGD(stack, training, stack.device.type == "cpu")
        if isinstance(network, OnGpu):
            self._sgd = FusedSGD(stack, training, network.shadow, network.plain)
        self._on_gpu = stack.device.type == "cuda"
        self._losses = torch.zeros(stack.models, device=stack.device)
        self._keys = torch.zeros(stack.models, dtype=torch.int64, device=stack.device)
        self._table = torch.zeros(0, 0, dtype=torch.int64)
        self._graph: Any = None
        self._captured: object = None
        self._warm: object = None

    def train(self, workers: Sequence[Worker], requests: Sequence[Request], epochs: int) -> list[Update]:
        """Every worker's answer; workers come with the most samples first."""
        self.stack.load([request.model for request in requests])
        self._sgd.begin(requests, workers)
        if isinstance(self._network, OnGpu):
            self._network.refresh()
        samples = [worker.samples for worker in workers]
        plan = list(steps(samples, self._training.batch_size))
        for _ in range(epochs):
            self._prepare(workers, samples[0])
            self._play(plan, (tuple(samples), self._sgd.prox, self._sgd.squaring))
        self._sgd.leave(workers)
        return self._answers(workers, requests)

    def _prepare(self, workers: Sequence[Worker], longest: int) -> None:
        """The orders and keys of the next epoch; workers with the same key (of other runs) share an order."""
        if self._table.shape != (len(workers), longest):
            self._table = torch.zeros(len(workers), longest, dtype=torch.int64, device=self.stack.device)
            self._captured = None
        place: dict[int, int] = {}
        orders = torch.zeros(len({w.key for w in workers}), longest, dtype=torch.int64, pin_memory=self._on_gpu)
        for worker in workers:
            if worker.key in place:
                worker.epochs += 1
                continue
            place[worker.key] = len(place)
            orders.numpy()[place[worker.key], : worker.samples] = worker.next_order()
        unique = self._sent(orders)
        if len(orders) == len(workers):
            self._table.copy_(unique)
        else:
            torch.index_select(unique, 0, self._sent(torch.tensor([place[w.key] for w in workers])), out=self._table)
        self._keys.copy_(self._sent(torch.tensor([(w.key + STRIDE * w.steps) & KEYS for w in workers])))
        for worker in workers:
            worker.steps += -(-worker.samples // self._training.batch_size)

    def _sent(self, values: torch.Tensor) -> torch.Tensor:
        """The values on the stack's device; a GPU that is still at the epoch before is not waited for."""
        return values.pin_memory().to(self.stack.device, non_blocking=True) if self._on_gpu else values

    def _play(self, plan: Sequence[Step], shape: tuple[tuple[int, ...], bool, bool]) -> None:
        """One epoch. Clients of equal size repeat the same steps, so a GPU plays them from a graph.

        The first epoch of a shape runs step by step, so that nothing is left to set up while the graph is captured.
        """
        even = len(set(shape[0])) == 1
        gpu = self._network if isinstance(self._network, OnGpu) and self._on_gpu else None
        if gpu is None or not even or self._warm != shape:
            if gpu is not None and self._warm != shape:
                gpu.compile({step.size for step in plan}, self._sgd.gradient)
            self._warm = shape
            self._epoch(plan)
            return
        if self._captured != shape:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._epoch(plan)
            self._captured = shape
        self._graph.replay()

    def _epoch(self, plan: Sequence[Step]) -> None:
        self._losses.zero_()
        for step in plan:
            rows = self._table[step.span, step.offset : step.offset + step.size]
            keys = self._keys[step.span]
            if self._draws:
                keys = (keys + (STRIDE * (step.number + 1) & KEYS)) & KEYS
            turn = Turn(rows, keys, step.start, self._sgd.gradient, self._training.lr, self._losses)
            self._network.step(turn)
            self._sgd.step(step.span)

    def _answers(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        values: Any = self.stack.rows()
        finite = values.isfinite().all(1).tolist()
        if arrays.is_numpy(requests[0].model.weights):  # answers come in kind
            values = values.cpu().numpy()
        squares = self._sgd.squares if self._sgd.squaring else None
        scores = [None] * len(workers) if squares is None else self.stack.get_rows(squares).cpu().numpy()
        return [
            Update(request.model.with_weights(row, good), worker.samples, loss / worker.samples, scores=score)
            for row, good, score, request, worker, loss in zip(
                values, finite, scores, requests, workers, self._losses.tolist(), strict=True
            )
        ]
