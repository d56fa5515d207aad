"""A node's side of a round: the same worker and the same generator as in a simulation, on the node's own samples.

In: a `Question`. Out: an `Answer` with the trained model.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...config import CLIENTS, RunConfig
from ...data import DATASETS, load_samples, partition
from ...data.dataset import channels_last
from ...data.holdout import hold_out
from ...data.inputs import Arrays, sizes_of
from ...data.partition import Indices
from ...errors import ConfigError, DataError
from ...methods import Request, Update, ask_client
from ...networks import build
from ...state import under
from ...tasks import targets_of
from ...training.cohort import Cohort
from ...training.flat import FlatModule
from ...training.inputs import Samples
from ...training.objective import objective_of
from ...training.settings import Training
from ...training.worker import Worker, evaluate
from ...wire.codec import encode
from ..client_views import ClientEvaluation
from ..prepared import as_network_takes
from ..wired import as_model, decode_state, encode_state
from .messages import Answer, Evaluated, Question
from .node_store import NodeStore
from .task import Task


@dataclass(frozen=True)
class Node:
    """A node: the run's task, its store, and the data that it was started with."""

    task: Task
    store: NodeStore
    data: str  # a data set's name; the run's own means: this client's part of the run's split
    device: str = "cpu"

    def answer(self, question: Question) -> Answer:
        """Run the client's half of a round."""
        began = time.perf_counter()
        config, network = self.task.config, self._network()
        model, lacks = self.store.received(question.model, network.layout.trainable, network.layout)
        if model is None:
            return Answer(question.round, question.client, lacks=lacks)
        x, y = self._taken(question.client)
        train, _ = self._divided(y, question.client)
        state = under(self.store.state(self.task.name, question.round), model)
        names = config.method.broadcasts
        received = decode_state(question.beside, names, model) if question.beside else {}
        samples = Samples.on(network.device, x, y)
        worker = Worker(network, samples, train, config, question.round, question.client, state)
        me = worker.context(self.task.outputs, received)
        update = worker.run(
            ask_client(config.method, question.round, model, me), _trainer(worker, self._build, samples, config)
        )
        if (kept := worker.kept(update)) is not None:
            self.store.keep_state(self.task.name, question.round, kept, config.checkpoint_every)
        precision = config.wire_precision if update.model.finite else "fp32"  # the server refuses it by name
        return Answer(
            question.round,
            question.client,
            samples=update.samples,
            loss=update.loss,
            seconds=time.perf_counter() - began,
            model=encode(update.model.on_host(), model.host_mask, precision, layout_known=True),
            scores=b"" if update.scores is None else encode(as_model(update.scores)),
            beside=encode_state(update.sent, model) if update.sent and update.finite else b"",
            fault=update.fault,
        )

    def evaluate(self, question: Question) -> Evaluated:
        """Evaluate a model on the samples that this client never trains on."""
        network = self._network()
        model, lacks = self.store.received(question.model, network.layout.trainable, network.layout)
        if model is None:
            return Evaluated(question.round, question.client, lacks=lacks)
        x, y = self._taken(question.client)
        _, held = self._divided(y, question.client)
        if not held.size:
            return Evaluated(question.round, question.client, fault=f"it holds out none of its {len(y):,} samples")
        config = self.task.config
        targets = targets_of(config.loss) or ("classes" if y.dtype == np.int64 else "values")
        objective = objective_of(config, config.metrics, targets, self.task.outputs)
        found = evaluate(network, model, Samples.on(network.device, x[held], y[held]), objective)
        one = ClientEvaluation.of(held.size, found)
        return Evaluated(question.round, question.client, one.samples, json.dumps(dict(one.metrics)))

    def _build(self) -> nn.Module:
        config = self.task.config
        return build(config.network, self.task.shape, self.task.outputs, config.seed)

    def _network(self) -> FlatModule:
        return FlatModule(self._build(), self._device())

    def _taken(self, client: int) -> tuple[Arrays, NDArray[Any]]:
        """The client's samples, of the type that the network takes."""
        x, y = self.samples(client)
        return as_network_takes(self.task.config, self._build(), x), y

    def _divided(self, labels: NDArray[Any], client: int) -> tuple[Indices, Indices]:
        """The samples to train on and those that are held out, as in a simulation."""
        config = self.task.config
        return hold_out(labels, np.arange(len(labels)), config.holdout, config.seed, client)

    def _device(self) -> torch.device:
        try:
            return torch.zeros(0, device=self.device).device
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device {self.device!r} is not here: {str(error).splitlines()[0]}") from error

    def samples(self, client: int) -> tuple[Arrays, NDArray[Any]]:
        """The node's own samples, or a client's part of the run's data set."""
        config = self.task.config
        if self.data != config.data:
            own = load_samples(self.data, targets_of(config.loss))
            x, y = own.x_train, own.y_train
        elif config.data == CLIENTS:
            raise DataError(
                "the clients of this run bring samples of their own: join --data FILE.npz or module:function."
            )
        elif config.data in DATASETS:
            part = f"{config.data} {config.loss} {config.clients} {config.split} {config.seed} {client}"
            key = hashlib.blake2b(part.encode(), digest_size=8).hexdigest()
            x, y = self.store.samples(key, partial(part_of, config, client))
        else:
            x, y = part_of(config, client)
        if sizes_of(x) != self.task.shape:
            hint = channels_last(sizes_of(x))
            raise DataError(
                f"{self.data} must hold samples of shape {self.task.shape}. Received: {sizes_of(x)}."
                f"{hint and ' '}{hint}"
            )
        if y.dtype == np.int64 and y.max() >= self.task.outputs:
            raise DataError(f"{self.data} must hold classes 0 … {self.task.outputs - 1}. Received: {y.max()}.")
        if y.dtype != np.int64 and prod(y.shape[1:]) != self.task.outputs:
            raise DataError(
                f"{self.data} must hold {self.task.outputs} targets per sample. Received: {prod(y.shape[1:])}."
            )
        return x, y


def _trainer(
    worker: Worker, make: Callable[[], nn.Module], samples: Samples, training: Training
) -> Callable[[Request], Update] | None:
    """What answers requests to train: on a CPU, the back end that a simulation would use; else the worker itself.

    Every message is a new process, in which kernels for a GPU would be compiled again.
    """
    device = worker.network.device
    if device.type != "cpu":
        return None
    cohort = Cohort(make, samples, training, device)
    return lambda request: cohort.fit([worker], [request])[0]


def part_of(config: RunConfig, client: int) -> tuple[Any, NDArray[Any]]:
    """A client's samples of the run's data set: those that it has in a simulation."""
    whole = load_samples(config.data, targets_of(config.loss))
    mine = partition(whole.y_train, config.clients, config.split, config.seed, whole.clients)[client]
    return whole.x_train[mine], whole.y_train[mine]
