"""A federation inside one process: clients are slices of one data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from ..config import RunConfig
from ..data import Dataset, partition
from ..data.partition import Indices
from ..errors import ConfigError
from ..methods import Method, Request, Update, ask_client, cohort_of, until_diverged
from ..model import Floats, SparseModel
from ..networks import build, model_of
from ..networks.graph_facts import GraphFacts
from ..training.cohort import Cohort
from ..training.flat import FlatModule
from ..training.step_times import step_times
from ..training.worker import Evaluation, Samples, Worker, evaluate, loss_and_gradient
from .checks import check_batches, check_network
from .diagnosis import Probed

PROBE_SAMPLES = 1000
PROBED = 4  # samples on which a graph is held against its network


class Machine:
    """What runs of one environment can share: the samples on their device, and the cohort that trains there."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        check_network(config, dataset)
        self.device = open_device(config.device, config.precision)
        self._config, self._dataset = config, dataset

    @cached_property
    def train(self) -> Samples:
        """The training samples."""
        return Samples.on(self.device, self._dataset.x_train, self._dataset.y_train)

    @cached_property
    def test(self) -> Samples:
        """The test samples."""
        samples = Samples.on(self.device, self._dataset.x_test, self._dataset.y_test)
        if self.device.type == "cpu" or samples.x.ndim != 4:
            return samples
        # With channels last a GPU evaluates vgg16 in 44 ms where it took 80.
        return replace(samples, x=samples.x.contiguous(memory_format=torch.channels_last))

    @cached_property
    def cohort(self) -> Cohort:
        """Whatever trains many models at once."""
        return Cohort(lambda: build_for(self._config, self._dataset), self.train, self._config, self.device)

    @cached_property
    def graph(self) -> GraphFacts:
        """What the network computes; a notice where a file cannot say it, before the training is paid for."""
        return GraphFacts.of(build_for(self._config, self._dataset), torch.from_numpy(self._dataset.x_test[:PROBED]))

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request."""
        return self.cohort.fit(workers, requests)


class Simulated:
    """All clients of a run on this machine, trained as one cohort."""

    def __init__(self, config: RunConfig, dataset: Dataset, machine: Machine | None = None) -> None:
        self._config = config
        self._dataset = dataset
        self.machine = machine or Machine(config, dataset)
        self._device = self.machine.device
        self.parts: list[Indices] = partition(dataset.y_train, config.clients, config.split, config.seed)
        self._network = FlatModule(build_for(config, dataset), self._device)
        check_batches(self._network, config, self.parts, dataset)
        self.velocities: dict[int, Floats] = {}

    def initial(self) -> SparseModel:
        """The model that every run with this seed starts from."""
        return self.place(model_of(build_for(self._config, self._dataset)))

    def place(self, model: SparseModel) -> SparseModel:
        """The model where this federation trains: on a GPU it stays there from round to round."""
        return model if self._device.type == "cpu" else model.beside(self._network.weights)

    def ask(self, method: Method, round: int, model: SparseModel) -> Iterator[Update]:
        """Every participant's answer; the cohort advances in lock-step, and all that train are one computation."""
        asked = participants(self._config, round, cohort_of(method, round))
        workers = [self._worker(round, client) for client in asked]
        clients = [until_diverged(ask_client(method, round, model)) for _ in workers]
        pending = {i: next(client) for i, client in enumerate(clients)}
        done: dict[int, Update] = {}
        while pending:
            fits = {i: request for i, request in pending.items() if request.trains}
            trained = self.machine.fit([workers[i] for i in fits], list(fits.values())) if fits else []
            answers = dict(zip(fits, trained, strict=True))
            answers |= {i: workers[i].answer(request) for i, request in pending.items() if i not in fits}
            pending = {}
            for i, answer in sorted(answers.items()):
                try:
                    pending[i] = clients[i].send(answer)
                except StopIteration as end:
                    done[i] = end.value
        for i, worker in enumerate(workers):
            update = done.pop(i)
            if self._config.keep_optimizer and worker.velocity is not None and update.model.finite:
                self.velocities[worker.client] = worker.velocity.cpu().numpy()  # else the client has its last one
            yield replace(update, client=worker.client)

    def _worker(self, round: int, client: int) -> Worker:
        velocity = self.velocities.get(client)
        return Worker(
            self._network,
            self.machine.train,
            self.parts[client],
            self._config,
            round,
            client,
            None if velocity is None else velocity.copy(),  # it is trained in place, and may be being written to disk
        )

    def measure_times(self) -> str:
        """How long a training step takes here, as the setting `times` of a method names it."""
        return step_times(self._network, self.machine.train.x[: self._config.batch_size].clone())

    def graph_of(self, model: SparseModel) -> dict[str, object]:
        """What the file of a trained model says of its network."""
        return self.machine.graph.of_model(self._network, model)

    def evaluate(self, model: SparseModel) -> Evaluation:
        """Accuracy and loss on the data set's test samples."""
        return evaluate(self._network, model, self.machine.test)

    def probe(self, model: SparseModel) -> Probed:
        """Loss and masked gradient on training samples that are the same in every round of the run."""
        rng = np.random.default_rng(np.random.SeedSequence([self._config.seed], spawn_key=(2,)))
        train = self.machine.train
        chosen = torch.from_numpy(rng.permutation(len(train.y))[:PROBE_SAMPLES]).to(self._device)
        loss, gradient = loss_and_gradient(self._network, model, Samples(train.x[chosen], train.y[chosen]))
        return Probed(loss, float(np.linalg.norm(gradient[model.on_host().mask].astype(np.float64))))


def participants(config: RunConfig, round: int, cohort: float | None = None) -> list[int]:
    """The clients that a round asks, drawn without replacement: as many as the run says, or `cohort`."""
    count = config.participants if cohort is None else int(min(cohort, config.clients))
    if count == config.clients:
        return list(range(config.clients))
    rng = np.random.default_rng(np.random.SeedSequence([config.seed, round], spawn_key=(0,)))
    return sorted(rng.choice(config.clients, count, replace=False).tolist())


def build_for(config: RunConfig, dataset: Dataset) -> torch.nn.Module:
    """The run's network, as it is before the first round."""
    return build(config.network, dataset.shape, dataset.classes, config.seed)


def open_device(name: str, precision: str) -> torch.device:
    """The torch device of that name, or an error that says what there is."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        there = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ConfigError(f"device {name!r} is not here. There is: {', '.join(there)}.") from error
    if precision != "fp32" and device.type != "cuda":
        raise ConfigError(f"precision {precision!r} needs a GPU. Received: device {name!r}.")
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True  # same seed, same bytes
        # What torch computes beside our kernels, evaluation above all, may be as coarse as tf32 where training is so.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    return device
