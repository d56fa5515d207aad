"""Epochs of a stack of models: step by step, or on a GPU as one captured graph per epoch.

In: workers and their requests. Out: one update per worker, trained as one stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from ... import arrays
from ...keyed import KEYS, STRIDE
from ...methods import Request, Update
from ..batches import Step, StepInputs, steps
from ..settings import Training
from ..worker import Worker
from .adam import Adam
from .sgd import SGD, FusedSGD
from .stack import Stack


def rate_table(rates: Sequence[NDArray[np.float64]], epochs: int) -> NDArray[np.float32]:
    """Learning rates of models, most steps first, as (epochs, steps per epoch, models).

    After the last step of a model's epoch there are the rates of the first model, which are not used.
    """
    first = rates[0].reshape(epochs, -1, 1)
    table = np.repeat(first, len(rates), axis=2).astype(np.float32)
    for model, mine in enumerate(rates):
        if mine is not rates[0]:
            steps = mine.size // epochs
            table[:, :steps, model] = mine.reshape(epochs, steps)
    return table


class StackedNetwork(Protocol):
    """Takes one training step of many models."""

    def step(self, inputs: StepInputs) -> None:
        """Gradients of the models from `start` into a buffer, or applied at once; losses added up."""


@runtime_checkable
class GpuNetwork(Protocol):
    """A stacked network with GPU kernels: it keeps a copy of the weights in its compute type."""

    shadow: torch.Tensor

    @property
    def plain(self) -> bool:
        """Whether it can apply plain SGD by itself."""

    def begin(self, requests: Sequence[Request]) -> torch.Tensor:
        """Prepare for requests of one kind on the models that the stack holds now. Returns the copy, up to date."""

    def compile(self, sizes: Iterable[int], gradient: torch.Tensor | None, fixed_norms: bool) -> None:
        """Compile the kernels for batches of these sizes."""


class Trainer:
    """Trains the models of a stack, round after round, in the same memory."""

    def __init__(self, stack: Stack, network: StackedNetwork, training: Training, needs_keys: bool) -> None:
        self.stack, self._network, self._training, self._needs_keys = stack, network, training, needs_keys
        gpu = network if isinstance(network, GpuNetwork) else None
        shadow = gpu.shadow if gpu else None
        self._optimizer: SGD
        if training.optimizer != "sgd":
            self._optimizer = Adam(stack, training, False, shadow)
        elif gpu:
            self._optimizer = FusedSGD(stack, training, gpu.plain, shadow)
        else:
            self._optimizer = SGD(stack, training, stack.device.type == "cpu")
        self._on_gpu = stack.device.type == "cuda"
        self._losses, self._unread = torch.zeros(2, stack.models, device=stack.device)  # at SAM's points: not read
        self._keys = torch.zeros(stack.models, dtype=torch.int64, device=stack.device)
        self._sample_table = torch.zeros(0, 0, dtype=torch.int64)
        self._rates = torch.zeros(0, stack.models)  # of each step of an epoch and each model
        self._rates_sent: NDArray[np.float32] | None = None  # what they are
        self._graphs: dict[bool, torch.cuda.CUDAGraph] = {}  # of an epoch: of the first, and of others if they differ
        self._captured: object = None
        self._warm: object = None
        self._fixed_norms = False

    def train(self, workers: Sequence[Worker], requests: Sequence[Request], epochs: int) -> list[Update]:
        """Every worker's answer; workers come with the most samples first, and are alike in whether norms are fixed."""
        self.stack.load([request.model for request in requests])
        samples, rates = [worker.samples for worker in workers], [worker.rates(epochs) for worker in workers]
        table = rate_table(rates, epochs)
        if isinstance(self._network, GpuNetwork):
            self._optimizer.shadow = self._network.begin(requests)
        self._optimizer.begin(requests, workers, bool((table != table[..., :1]).any()))
        self._fixed_norms = workers[0].fixed_norms
        epoch_steps = list(steps(samples, self._training.batch_size))
        for epoch in range(epochs):
            self._prepare(workers, samples[0])
            self._send_rates(table[epoch])
            # Steps that find thresholds are in the first epoch alone.
            prunes = requests[0].prune_inputs
            shape = tuple(samples), *self._optimizer.shape, prunes, self._fixed_norms
            self._run_epoch(epoch_steps, shape, epoch == 0 or not prunes)
        self._optimizer.finish(workers)
        return self._answers(workers, requests, [float(mine.sum()) for mine in rates])

    def _prepare(self, workers: Sequence[Worker], longest: int) -> None:
        """The orders and keys of the next epoch; workers with the same key (of other runs) share an order."""
        if self._sample_table.shape != (len(workers), longest):
            self._sample_table = torch.zeros(len(workers), longest, dtype=torch.int64, device=self.stack.device)
            self._captured = None
        row_of: dict[int, int] = {}
        orders = torch.zeros(len({w.key for w in workers}), longest, dtype=torch.int64, pin_memory=self._on_gpu)
        for worker in workers:
            if worker.key in row_of:
                worker.epochs += 1
                continue
            row_of[worker.key] = len(row_of)
            orders.numpy()[row_of[worker.key], : worker.samples] = worker.next_order()
        unique = self._sent(orders)
        if len(orders) == len(workers):
            self._sample_table.copy_(unique)
        else:
            rows = self._sent(torch.tensor([row_of[worker.key] for worker in workers]))
            torch.index_select(unique, 0, rows, out=self._sample_table)
        self._keys.copy_(self._sent(torch.tensor([(w.key + STRIDE * w.steps) & KEYS for w in workers])))
        for worker in workers:
            worker.steps += worker.steps_per_epoch

    def _send_rates(self, rates: NDArray[np.float32]) -> None:
        """The learning rates of the next epoch, into memory that a captured graph reads."""
        if self._rates_sent is not None and np.array_equal(self._rates_sent, rates):
            return
        if len(self._rates) != len(rates):
            aligned = -(-self.stack.models // 4) * 4  # of each row: triton compiles a kernel per alignment
            held = torch.zeros(len(rates), aligned, device=self.stack.device)
            self._rates, self._captured = held[:, : self.stack.models], None
        self._rates.copy_(self._sent(torch.from_numpy(rates)))
        self._rates_sent = rates

    def _sent(self, values: torch.Tensor) -> torch.Tensor:
        """The values on the stack's device. Does not wait for a GPU that still runs the epoch before."""
        return values.pin_memory().to(self.stack.device, non_blocking=True) if self._on_gpu else values

    def _run_epoch(self, epoch_steps: Sequence[Step], shape: tuple[Any, ...], first: bool) -> None:
        """One epoch. Clients of equal size repeat the same steps, so a GPU replays them from a captured graph.

        The first epoch of a shape runs step by step, so that everything is compiled before the graph is captured.
        """
        even = len(set(shape[0])) == 1
        gpu = self._network if isinstance(self._network, GpuNetwork) and self._on_gpu else None
        if gpu is None or not even or self._warm != shape:
            if gpu is not None and self._warm != shape:
                gpu.compile({step.size for step in epoch_steps}, self._optimizer.gradient, self._fixed_norms)
            self._warm = shape
            self._take(epoch_steps, first)
            return
        if self._captured != shape:
            self._graphs.clear()
            self._captured = shape
        if first not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._take(epoch_steps, first)
            self._graphs[first] = graph
        self._graphs[first].replay()

    def _take(self, epoch_steps: Sequence[Step], first: bool) -> None:
        self._losses.zero_()
        for step in epoch_steps:
            rows = self._sample_table[step.span, step.offset : step.offset + step.size]
            keys = self._keys[step.span]
            if self._needs_keys:
                keys = (keys + (STRIDE * (step.number + 1) & KEYS)) & KEYS
            rates, gradient = self._rates[step.number, step.span], self._optimizer.gradient
            decay = self._training.weight_decay
            begins = first and step.number == 0
            inputs = StepInputs(rows, keys, step.start, gradient, rates, decay, self._losses, begins, self._fixed_norms)
            self._network.step(inputs)
            if self._training.sam:
                before = self._optimizer.go_uphill(step.span)
                self._network.step(replace(inputs, losses=self._unread, first=False))
                self._optimizer.go_back(before)
            self._optimizer.step(step.span, rates)

    def _answers(self, workers: Sequence[Worker], requests: Sequence[Request], rates: Sequence[float]) -> list[Update]:
        values: Any = self.stack.rows()
        finite = values.isfinite().all(1).tolist()
        if arrays.is_numpy(requests[0].model.weights):  # answers live where the request's model does
            values = values.cpu().numpy()
        squares = self._optimizer.squares if self._optimizer.sums_squares else None
        scores = [None] * len(workers) if squares is None else self.stack.get_rows(squares).cpu().numpy()
        return [
            Update(request.model.with_weights(row, good), worker.samples, loss / worker.samples, scores=one, rates=rate)
            for row, good, one, request, worker, loss, rate in zip(
                values, finite, scores, requests, workers, self._losses.tolist(), rates, strict=True
            )
        ]
