"""Perceptrons on a CPU, by compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ...methods import Request, Update
from ..native.perceptrons import Perceptrons, read_perceptron
from ..worker import Worker
from .base import Setup, in_turn


class Native:
    """One compiled call per epoch; without numba, and without an image that it left, there is none."""

    name, checked = "native", True

    def __init__(self, setup: Setup, kernels: Perceptrons) -> None:
        self._setup, self.kernels = setup, kernels

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """For perceptrons whose samples are not augmented."""
        layers = read_perceptron(setup.module, setup.layout)
        if setup.device.type != "cpu" or setup.batches.augment or layers is None:
            return None
        try:
            return cls(setup, Perceptrons(layers, setup.samples, setup.training))
        except ImportError:
            return None

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""

        def train(slot: int, worker: Worker, request: Request) -> Update:
            return self.kernels.train(slot, worker, request, self._setup.epochs(request))

        return in_turn(train, workers, requests)
