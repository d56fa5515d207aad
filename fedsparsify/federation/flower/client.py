"""A node's side of a round: the same worker and the same generator as in a simulation, on the node's own samples.

In: a `Question`. Out: an `Answer` with the trained model.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ...config import RunConfig
from ...data import DATASETS, load_samples, partition
from ...errors import ConfigError, DataError
from ...methods import ask_client
from ...model import Floats
from ...networks import build
from ...state import under
from ...training.flat import FlatModule
from ...training.worker import Samples, Worker
from ...wire.codec import encode
from ..wired import as_model, decode_state, encode_state
from .messages import Answer, Question
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
        config = self.task.config
        network = FlatModule(build(config.network, self.task.shape, self.task.classes, config.seed), self._device())
        layout = network.layout
        model, lacks = self.store.received(question.model, layout.trainable, layout)
        if model is None:
            return Answer(question.round, question.client, lacks=lacks)
        x, y = self.samples(question.client)
        state = under(self.store.state(self.task.name, question.round), model)
        names = config.method.broadcasts
        received = decode_state(question.beside, names, model) if question.beside else {}
        worker = Worker(
            network,
            Samples.on(network.device, x, y),
            np.arange(len(y)),
            config,
            question.round,
            question.client,
            state,
        )
        me = worker.context(self.task.classes, received)
        update = worker.run(ask_client(config.method, question.round, model, me))
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

    def _device(self) -> torch.device:
        try:
            return torch.zeros(0, device=self.device).device
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device {self.device!r} is not here: {str(error).splitlines()[0]}") from error

    def samples(self, client: int) -> tuple[Floats, NDArray[np.int64]]:
        """The node's own samples, or a client's part of the run's data set."""
        config = self.task.config
        if self.data != config.data:
            x, y = load_samples(self.data)
        elif config.data in DATASETS:
            part = f"{config.data} {config.clients} {config.split} {config.seed} {client}"
            key = hashlib.blake2b(part.encode(), digest_size=8).hexdigest()
            x, y = self.store.samples(key, partial(part_of, config, client))
        else:
            x, y = part_of(config, client)
        if x.shape[1:] != self.task.shape:
            raise DataError(f"{self.data} must hold samples of shape {self.task.shape}. Received: {x.shape[1:]}.")
        if y.max() >= self.task.classes:
            raise DataError(f"{self.data} must hold classes 0 … {self.task.classes - 1}. Received: {y.max()}.")
        return x, y


def part_of(config: RunConfig, client: int) -> tuple[Floats, NDArray[np.int64]]:
    """A client's samples of the run's data set: those that it has in a simulation."""
    x, y = load_samples(config.data)
    mine = partition(y, config.clients, config.split, config.seed)[client]
    return x[mine], y[mine]
