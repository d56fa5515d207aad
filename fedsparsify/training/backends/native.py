"""Perceptrons on a CPU, by compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ...methods import Request, Update
from ...native.machine import lanes_here
from ...notices import notice
from ..native.kernel_code import PERCEPTRONS
from ..native.perceptrons import Perceptrons, read_perceptron
from ..settings import Training
from ..worker import Worker
from .base import Setup, on_thread_pool


class Native:
    """One compiled call per epoch, one thread per core."""

    name, checked = "native", True

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        layers = read_perceptron(setup.module, setup.layout) or []
        self.kernels = Perceptrons(layers, setup.samples, setup.training)

    @classmethod
    def refusal(cls, setup: Setup) -> str | None:
        """Takes perceptrons on a CPU whose samples are not augmented."""
        if not setup.on_cpu:
            return "it trains on a CPU"
        if setup.batches.augment:
            return "it does not augment samples"
        if read_perceptron(setup.module, setup.layout) is None:
            return "it trains Flatten, then Linear and ReLU in sequence, and nothing else"
        if (reason := cls.refusal_of(setup.training)) is not None:
            notice(f"this network is not trained by the native back end: {reason}. A slower one takes its place.")
            return reason
        try:
            PERCEPTRONS(lanes_here())
        except ImportError as error:
            notice(f"this network is not trained by the native back end: {error} A slower one takes its place.")
            return str(error)
        if why := setup.unusual():
            notice(f"this network is not trained by the native back end: {why}. A slower one takes its place.")
        return why

    @staticmethod
    def refusal_of(training: Training) -> str | None:
        """Why its kernels cannot train by these settings; None where they can."""
        if training.optimizer != "sgd":
            return f"its kernels have no {training.optimizer}, only sgd"
        if training.sam:
            return "its kernels have no sam"
        return "its kernels do not clip gradients" if training.clip_norm else None

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""

        def train(slot: int, worker: Worker, request: Request) -> Update:
            return self.kernels.train(slot, worker, request, self._setup.epochs(request))

        return on_thread_pool(train, workers, requests)
