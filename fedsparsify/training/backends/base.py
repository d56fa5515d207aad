"""The protocol of a back end, what it is given, and how it uses the cores of a CPU.

In: a `Setup`, once; then workers and their requests, round after round. Out: one update per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import Protocol, TypeVar

import torch
from torch import nn

from ...keyed import KeyedDropout
from ...methods import Request, Update
from ...model import Layout
from ...native.machine import cores_here
from ...networks import layout_of
from ..batches import Batches
from ..flat import FlatModule
from ..inputs import Samples
from ..losses import Loss, is_plain, loss_of
from ..settings import Training
from ..worker import Worker

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Setup:
    """A network, the samples of all clients on their device, and the settings of their training."""

    make: Callable[[], nn.Module]  # a new copy of the network at every call
    samples: Samples
    training: Training
    device: torch.device

    @cached_property
    def module(self) -> nn.Module:
        """A copy of the network whose layers may be read; it is never called."""
        return self.make().to(self.device)

    @cached_property
    def layout(self) -> Layout:
        """Where each tensor lies in a flat model."""
        return layout_of(self.module)

    @cached_property
    def batches(self) -> Batches:
        """The samples of a step, augmented where the settings say so."""
        return Batches(self.samples, self.training.augment != "none")

    @cached_property
    def needs_keys(self) -> bool:
        """Whether a step needs a random key: for keyed dropout, or for augmentation."""
        return self.batches.augment or any(isinstance(child, KeyedDropout) for child in self.module.modules())

    @cached_property
    def loss(self) -> Loss:
        """What clients minimise."""
        return loss_of(self.training)

    def unusual(self) -> str | None:
        """Why kernels for cross-entropy of classes on one input of floats cannot train this; None where they can."""
        if not is_plain(self.training):
            return f"it minimises cross-entropy, not {self.training.loss}"
        if self.samples.y.ndim > 1:
            return "it takes one class per sample"
        return self.several_inputs()

    def several_inputs(self) -> str | None:
        """Why a stack cannot be given these samples; None where it can."""
        return None if self.samples.single else "it takes one input of floats"

    @property
    def on_cpu(self) -> bool:
        """Whether the samples, and so the training, are on a CPU."""
        return self.device.type == "cpu"

    def flat(self) -> FlatModule:
        """A new copy of the network for autograd."""
        return FlatModule(self.make(), self.device)

    def epochs(self, request: Request) -> int:
        """How many epochs a request asks for."""
        return request.epochs or self.training.epochs


class Backend(Protocol):
    """Trains many clients of one network."""

    @property
    def name(self) -> str:
        """The name in the table of this package's docstring."""

    @property
    def checked(self) -> bool:
        """Whether it computes the network in its own way, and is compared with autograd before its first use."""

    def __init__(self, setup: Setup) -> None:
        """Prepare to train `setup`, which `refusal` has let through."""

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Why it cannot train this network here; None where it can."""

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""


def on_thread_pool(
    train: Callable[[int, Worker, Request], Update], workers: Sequence[Worker], requests: Sequence[Request]
) -> list[Update]:
    """Every worker's answer, from one thread per core. An idle thread takes the largest client that is left.

    `train` is given the number of a job slot, which no other thread holds at the same time: memory can be kept per
    slot. Threads do not wait for each other within a round, so a core that another process takes slows down its own
    share of the clients only.
    """
    order = sorted(range(len(workers)), key=lambda i: -workers[i].samples)
    threads = min(cores_here(), len(order))
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(threads):
        slots.put(slot)

    def answer(i: int) -> Update:
        slot = slots.get()
        try:
            return train(slot, workers[i], requests[i])
        finally:
            slots.put(slot)

    answers = dict(zip(order, in_threads(answer, order, threads), strict=True))
    return [answers[i] for i in range(len(workers))]


def in_threads(call: Callable[[int], Answer], numbers: Sequence[int], threads: int) -> list[Answer]:
    """The results of a call for each number, in threads that use one core each."""
    if threads == 1:
        return [call(number) for number in numbers]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(call, numbers))
    finally:
        torch.set_num_threads(before)
