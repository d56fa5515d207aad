"""A whole cohort as one computation: the answers of many clients to `Fit`, trained side by side.

Clients keep their own order of samples, their own dropout and their own statistics, so each gets what it would have
got alone, up to the rounding of the larger products.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from ..config import Training
from ..keyed import KEYS, STRIDE, KeyedDropout, pad_crop_flip
from ..methods import Fit, Update
from ..model import SparseModel
from ..networks import layout_of, model_of
from .any_stack import AnyStack
from .dense_stack import DenseStack
from .stack import Stack
from .worker import Samples, Worker


class Network(Protocol):
    """Something that can take one training step of many models."""

    def step(
        self, x: torch.Tensor, y: torch.Tensor, keys: torch.Tensor, start: int, into: torch.Tensor | None, lr: float
    ) -> torch.Tensor:
        """Gradients of the models `start … start + len(x)` into a buffer, or applied at once; their losses."""


@dataclass(frozen=True)
class Step:
    """One batch for a run of models: `models` of them from `start`, `size` samples each from `offset`."""

    number: int  # which of its client's batches it is
    start: int
    models: int
    offset: int
    size: int

    @property
    def span(self) -> slice:
        """The models that take part."""
        return slice(self.start, self.start + self.models)


def steps(samples: Sequence[int], batch: int) -> Iterator[Step]:
    """An epoch of clients with so many samples each, largest first: every client sees its batches in order."""
    for number in range(samples[0] // batch):
        yield Step(number, 0, sum(count // batch > number for count in samples), number * batch, batch)
    start = 0
    while start < len(samples):
        count = samples[start]
        same = samples.count(count)
        if rest := count % batch:
            yield Step(count // batch, start, same, count - rest, rest)
        start += same


class Cohort:
    """Trains the clients of a round together; on a CPU, in as many chunks as there are free cores.

    Chunks are threads with one core each: they never wait for one another inside a round, so a core that another
    process takes costs its share and not the whole.
    """

    def __init__(self, module: nn.Module, samples: Samples, training: Training, device: torch.device) -> None:
        self._module, self._samples, self._training, self._device = module.to(device), samples, training, device
        self._layout = layout_of(module)
        self._draws = training.augment != "none" or any(isinstance(m, KeyedDropout) for m in module.modules())
        self._stacks: dict[tuple[int, int], tuple[Stack, Network]] = {}
        self._kind: type[DenseStack] | type[AnyStack] = DenseStack if DenseStack.takes(module) else AnyStack
        self.one_by_one = self._kind is AnyStack and not self._can_be_mapped()

    def _can_be_mapped(self) -> bool:
        """Try one step of two models; a network that cannot be mapped says so once."""
        stack = Stack(self._layout, 2, self._device)
        stack.load([model_of(self._module)] * 2)
        rows = torch.arange(4, device=self._device).view(2, 2) % len(self._samples.y)
        keys = torch.zeros(2, dtype=torch.int64, device=self._device)
        try:
            AnyStack(self._module, stack).step(*self._batch(rows, keys), keys, 0, None, 0.0)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"this network trains one client at a time, it cannot be batched: {reason}", stacklevel=2)
            return False
        return True

    def fit(self, workers: Sequence[Worker], requests: Sequence[Fit]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        if self.one_by_one:
            return [worker.fit(request) for worker, request in zip(workers, requests, strict=True)]
        groups: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(request.epochs or self._training.epochs, []).append(i)
        answers: dict[int, Update] = {}
        for epochs, members in groups.items():
            chunks = self._chunks(sorted(members, key=lambda i: -workers[i].samples))

            def train(number: int, picked: list[int], epochs: int = epochs) -> list[Update]:
                return self._train(number, [workers[i] for i in picked], [requests[i] for i in picked], epochs)

            for picked, updates in zip(chunks, side_by_side(train, chunks), strict=True):
                answers |= dict(zip(picked, updates, strict=True))
        return [answers[i] for i in range(len(workers))]

    def _chunks(self, order: list[int]) -> list[list[int]]:
        """Deal the clients, largest first, so that every chunk gets about as much to do."""
        threads = min(free_cores(), len(order)) if self._device.type == "cpu" else 1
        return [order[first::threads] for first in range(threads)]

    def _stack(self, chunk: int, models: int) -> tuple[Stack, Network]:
        """Memory for so many models, kept for the next round."""
        if (chunk, models) not in self._stacks:
            self._stacks = {key: value for key, value in self._stacks.items() if key[0] != chunk}
            stack = Stack(self._layout, models, self._device)
            self._stacks[chunk, models] = (stack, self._kind(self._module, stack))
        return self._stacks[chunk, models]

    def _train(self, chunk: int, workers: list[Worker], requests: list[Fit], epochs: int) -> list[Update]:
        training = self._training
        stack, network = self._stack(chunk, len(workers))
        stack.load([request.model for request in requests])
        sgd = SGD(stack, training, requests, workers)
        samples = [worker.samples for worker in workers]
        plan = list(steps(samples, training.batch_size))
        losses = torch.zeros(len(workers), device=self._device)
        for _ in range(epochs):
            losses.zero_()
            orders = np.zeros((len(workers), samples[0]), np.int64)
            for row, worker in zip(orders, workers, strict=True):
                row[: worker.samples] = worker.next_order()
            table = torch.from_numpy(orders).to(self._device)
            base = torch.tensor([(w.key + STRIDE * w.steps) & KEYS for w in workers], device=self._device)
            for step in plan:
                rows = table[step.span, step.offset : step.offset + step.size]
                keys = base[step.span]
                if self._draws:
                    keys = (keys + (STRIDE * (step.number + 1) & KEYS)) & KEYS
                loss = network.step(*self._batch(rows, keys), keys, step.start, sgd.gradient, training.lr)
                losses[step.span] += loss * step.size
                sgd.step(step.span)
            for worker in workers:
                worker.steps += -(-worker.samples // training.batch_size)
        sgd.leave(workers)
        return self._answers(stack, workers, requests, losses)

    def _batch(self, rows: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of the samples `rows`, (models, batch)."""
        picked = rows.reshape(-1)
        x = self._samples.x.index_select(0, picked).view(*rows.shape, *self._samples.x.shape[1:])
        if self._training.augment == "pad-crop-flip":
            x = torch.stack([pad_crop_flip(mine, key) for mine, key in zip(x, keys, strict=True)])
        return x, self._samples.y.index_select(0, picked).view(rows.shape)

    def _answers(self, stack: Stack, workers: list[Worker], requests: list[Fit], losses: torch.Tensor) -> list[Update]:
        values: Any = stack.rows()
        if self._device.type == "cpu":
            values = values.numpy()
        return [
            Update(SparseModel(self._layout, row, request.model.mask), worker.samples, loss / worker.samples)
            for row, request, worker, loss in zip(values, requests, workers, losses.tolist(), strict=True)
        ]


class SGD:
    """The part of a step that follows the gradient: proximal pull, momentum, masks.

    Plain SGD needs no gradient buffer: the network adds each gradient to its weights. A pruned weight was zero before
    the step, so setting it to zero after the step is the same as masking its gradient.
    """

    def __init__(self, stack: Stack, training: Training, requests: Sequence[Fit], workers: Sequence[Worker]) -> None:
        self._stack, self._training = stack, training
        self._pull = torch.tensor([request.prox for request in requests], device=stack.device)
        self._anchor = stack.weights.clone() if self._pull.any() else None
        self._velocity = torch.zeros_like(stack.weights) if training.momentum else None
        if self._velocity is not None and any(worker.velocity is not None for worker in workers):
            empty = torch.zeros(stack.layout.trainable, device=stack.device)
            kept = [empty if worker.velocity is None else worker.velocity for worker in workers]
            stack.set_rows(self._velocity, torch.stack(kept))
            self._velocity.masked_fill_(stack.pruned, 0)
        plain = self._anchor is None and self._velocity is None
        self.gradient = None if plain else torch.zeros_like(stack.weights)

    def step(self, span: slice) -> None:
        """Move the models of `span` along their gradients."""
        stack, training = self._stack, self._training
        if self.gradient is not None:
            gradients = self._parts(self.gradient, span)
            if self._anchor is not None:
                pulls = (
                    self._blocks(self.gradient, span),
                    self._blocks(stack.weights, span),
                    self._blocks(self._anchor, span),
                )
                for gradient, weights, anchor in zip(*pulls, strict=True):
                    gradient += (weights - anchor) * self._pull[span].view(-1, *[1] * (weights.ndim - 1))
            if stack.any_pruned:
                self.gradient.masked_fill_(stack.pruned, 0)
            if self._velocity is not None:
                velocities = self._parts(self._velocity, span)
                for gradient, velocity in zip(gradients, velocities, strict=True):
                    velocity.mul_(training.momentum).add_(gradient)
                    if training.nesterov:
                        gradient.add_(velocity, alpha=training.momentum)
                gradients = gradients if training.nesterov else velocities
            for gradient, weights in zip(gradients, self._parts(stack.weights, span), strict=True):
                weights.sub_(gradient, alpha=training.lr)
        elif stack.any_pruned:
            stack.weights.masked_fill_(stack.pruned, 0)

    def leave(self, workers: Sequence[Worker]) -> None:
        """Hand every worker its momentum."""
        if self._velocity is not None:
            for worker, row in zip(workers, self._stack.get_rows(self._velocity), strict=True):
                worker.velocity = row

    def _parts(self, flat: torch.Tensor, span: slice) -> list[torch.Tensor]:
        """The buffer's share of the models in `span`: all of it at once where it is all of them."""
        return [flat] if span == slice(0, self._stack.models) else self._blocks(flat, span)

    def _blocks(self, flat: torch.Tensor, span: slice) -> list[torch.Tensor]:
        return [block[span] for block in self._stack.blocks(flat).values()]


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
