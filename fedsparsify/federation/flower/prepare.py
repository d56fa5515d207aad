"""From a config to the task and the limits that a Flower run is started with."""

from __future__ import annotations

import hashlib

import torch

from ...config import RunConfig, to_toml
from ...errors import ConfigError
from ...methods import check_fits
from ...networks import build, model_of
from ...training.flat import FlatModule
from ...training.inputs import as_torch
from ...training.step_times import step_times
from ..checks import check_network
from ..environment import build_for
from ..folder import RunFolder
from ..run import settled
from .messages import SPARE_BYTES, most_bytes
from .server_data import server_dataset
from .task import Task


def make_task(config: RunConfig, folder: RunFolder) -> Task:
    """The task of a run in that folder: the same whenever it is made, so that a resumed run goes by the same name."""
    if config.diagnose:
        raise ConfigError("diagnose needs the clients' samples, which a server over a network does not have.")
    dataset = server_dataset(config)
    check_network(config, dataset)
    check_fits(config.method, model_of(build_for(config, dataset)))

    def measure() -> str:
        network = FlatModule(build_for(config, dataset), torch.device("cpu"))
        return step_times(network, as_torch(dataset.examples[: config.batch_size]))

    config = settled(config, measure, folder)
    name = hashlib.blake2b(f"{folder.path.resolve()}\n{to_toml(config)}".encode(), digest_size=8).hexdigest()
    return Task(config, dataset.shape, dataset.outputs, name)


def most_body_bytes(task: Task) -> int:
    """The longest body of a node's request: a model, or its scores, and what Flower puts around them."""
    network = build(task.config.network, task.shape, task.outputs, task.config.seed)
    return most_bytes(model_of(network).layout) + SPARE_BYTES
