"""A federation inside one process: clients are slices of one data set."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch

from ..clients.clock import step_times
from ..clients.flat import FlatModule
from ..clients.worker import Evaluation, Samples, Worker, evaluate
from ..config import RunConfig
from ..data import Dataset, partition
from ..data.partition import Indices
from ..errors import ConfigError
from ..methods import Method, Update
from ..model import Floats, SparseModel
from ..networks import build, model_of


class Simulated:
    """All clients of a run on this machine, asked one after the other."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        self._config = config
        self._dataset = dataset
        self._device = open_device(config.device)
        self.parts: list[Indices] = partition(dataset.y_train, config.clients, config.split, config.seed)
        self._network = FlatModule(self._build(), self._device)
        self.velocities: dict[int, Floats] = {}

    def _build(self) -> torch.nn.Module:
        dataset, config = self._dataset, self._config
        module = build(config.network, dataset.shape, dataset.classes, config.seed)
        check_output(module, dataset, config.network)
        return module

    def initial(self) -> SparseModel:
        """The model that every run with this seed starts from."""
        return model_of(self._build())

    @cached_property
    def _train(self) -> Samples:
        return Samples.on(self._device, self._dataset.x_train, self._dataset.y_train)

    @cached_property
    def _test(self) -> Samples:
        return Samples.on(self._device, self._dataset.x_test, self._dataset.y_test)

    def participants(self, round: int, cohort: float | None = None) -> list[int]:
        """The clients that a round asks, drawn without replacement: as many as the run says, or `cohort`."""
        config = self._config
        count = config.participants if cohort is None else int(min(cohort, config.clients))
        if count == config.clients:
            return list(range(config.clients))
        rng = np.random.default_rng(np.random.SeedSequence([config.seed, round], spawn_key=(0,)))
        return sorted(rng.choice(config.clients, count, replace=False).tolist())

    def ask(self, method: Method, round: int, model: SparseModel) -> Iterator[Update]:
        """Every participant's answer."""
        for client in self.participants(round, method.cohort(round)):
            worker = Worker(
                self._network,
                self._train,
                self.parts[client],
                self._config,
                round,
                client,
                self.velocities.get(client),
            )
            yield worker.run(method.client(round, model))
            if self._config.keep_optimizer:
                self.velocities[client] = worker.velocity

    def measure_times(self) -> str:
        """How long a training step takes here, as the setting `times` of a method names it."""
        return step_times(self._network, self._train.x[: self._config.batch_size])

    def evaluate(self, model: SparseModel) -> Evaluation:
        """Accuracy and loss on the data set's test samples."""
        return evaluate(self._network, model, self._test)


def open_device(name: str) -> torch.device:
    """The torch device of that name, or an error that says what there is."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        there = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ConfigError(f"device {name!r} is not here. There is: {', '.join(there)}.") from error
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True  # same seed, same bytes
    return device


def check_output(module: torch.nn.Module, dataset: Dataset, network: str) -> None:
    """Refuse a network that does not take these samples or name these classes."""
    module.eval()
    try:
        with torch.no_grad():
            logits = module(torch.from_numpy(dataset.x_test[:2]))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"network {network!r} does not take samples of shape {dataset.shape} ({dataset.name}): {reason}"
        ) from error
    if tuple(logits.shape) != (min(2, len(dataset.x_test)), dataset.classes):
        raise ConfigError(
            f"network {network!r} must give (batch, {dataset.classes}) logits for {dataset.name}. "
            f"Received: {tuple(logits.shape)}."
        )
