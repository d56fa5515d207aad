"""Back ends that train the module itself by autograd. The others are compared with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...methods import Request, Update
from ...notices import notice
from ..flat import FlatModule
from ..inputs import call
from ..worker import Worker
from .base import Setup, on_thread_pool


class Threads:
    """One thread per core, each with its own copy of the network."""

    name, checked = "threads", False

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._networks: dict[int, FlatModule] = {}  # by job slot

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes a CPU, unless the network draws from torch's own generator, which all threads share."""
        if not setup.on_cpu:
            return "it trains on a CPU"
        if draws_from_torch(setup):
            notice("this network trains one client at a time: it draws from torch's own random generator in training.")
            return "the network draws from torch's own random generator, which all threads share"
        return None

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        return on_thread_pool(self._train, workers, requests)

    def _train(self, slot: int, worker: Worker, request: Request) -> Update:
        if slot not in self._networks:
            self._networks[slot] = self._setup.flat()
            self._networks[slot].draws = False
        worker.network = self._networks[slot]
        return worker.answer(request)


class OneByOne:
    """One client after another, on the network that their worker holds."""

    name, checked = "one_by_one", False

    def __init__(self, setup: Setup) -> None:
        """Nothing is needed."""

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes every network."""
        return None

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        return [worker.answer(request) for worker, request in zip(workers, requests, strict=True)]


def draws_from_torch(setup: Setup) -> bool:
    """Whether a forward pass in training advances torch's generator."""
    module, x = setup.make().to(setup.device).train(), setup.samples.x[:2].clone()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.random.get_rng_state()
        call(module, x)
        return not torch.equal(before, torch.random.get_rng_state())
