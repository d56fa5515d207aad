"""Checks of a network before any training: its samples, its logits, its batches.

In: a run's config and its data set. Out: nothing; an error, or a notice of what will not be part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..config import RunConfig
from ..data import Dataset
from ..data.partition import Indices
from ..errors import ConfigError, DataError
from ..keyed import seeded
from ..model import SparseModel
from ..networks import build
from ..notices import notice
from ..training.flat import FlatModule
from ..training.worker import SINGLE_SAMPLE, single_sample_error


def check_network(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a network that does not take these samples or give these classes; name the state it will lose."""
    if config.evaluate != "clients" and not len(dataset.x_test):
        raise DataError(
            f"{dataset.name} has no test samples, x_test and y_test, which evaluate {config.evaluate!r} needs. Add "
            f'them, or evaluate on samples that clients hold out: evaluate = "clients" (--evaluate clients).'
        )
    first, module = (build(config.network, dataset.shape, dataset.classes, config.seed) for _ in range(2))
    with torch.no_grad():
        _check_logits(config, dataset, _logits(first.eval(), config, dataset, dataset.examples))
    network = FlatModule(module, torch.device("cpu"))
    before = dict(module.named_parameters())
    logits = _logits(module.train(), config, dataset, dataset.x_train)
    after = dict(module.named_parameters())
    if replaced := [name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)]:
        raise ConfigError(
            f"network {config.network!r} replaces its parameter {min(replaced)!r} in forward, so that no optimiser "
            f"would train it. Write into the parameter instead."
        )
    _check_logits(config, dataset, logits)
    try:
        logits.sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ConfigError(f"network {config.network!r} cannot be trained: {str(error).splitlines()[0]}") from error
    if changed := sorted(network.changed()):
        notice(
            f"forward changes {', '.join(changed[:5])}{' …' * (len(changed) > 5)} of the network, which is neither a "
            f"parameter nor a persistent float buffer: it is not part of the model, and starts anew for every client."
        )


def _logits(module: nn.Module, config: RunConfig, dataset: Dataset, samples: object) -> torch.Tensor:
    """What the network gives for two samples."""
    x = torch.from_numpy(samples[:2]).clone()  # type: ignore[index]
    try:
        with seeded(config.seed):
            logits: torch.Tensor = module(x)
    except Exception as error:  # a user's forward may raise anything
        if SINGLE_SAMPLE in str(error):
            raise single_sample_error(f"{dataset.name} has {len(x)}", 2) from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"network {config.network!r} does not take samples of shape {dataset.shape} ({dataset.name}): {reason}"
        ) from error
    return logits


def _check_logits(config: RunConfig, dataset: Dataset, logits: object) -> None:
    expected = f"network {config.network!r} must give (batch, {dataset.classes}) logits for {dataset.name}"
    if not isinstance(logits, torch.Tensor):
        raise ConfigError(f"{expected}, as one tensor. Received: {type(logits).__name__}.")
    if logits.ndim != 2 or logits.shape[1] != dataset.classes or logits.dtype != torch.float32:
        raise ConfigError(f"{expected}, of float32. Received: {tuple(logits.shape)} of {logits.dtype}.")


def check_batches(network: FlatModule, config: RunConfig, parts: Sequence[Indices], dataset: Dataset) -> None:
    """Refuse a division that leaves some client a last batch of one sample, if the network cannot train on one."""
    alone = [client for client, part in enumerate(parts) if part.size % config.batch_size == 1]
    if not alone or config.batch_size == 1:
        return
    model = SparseModel.dense(network.layout, network.values())
    network.module.train()
    try:
        with torch.no_grad(), seeded(config.seed):
            network.module(torch.from_numpy(dataset.x_train[:1].copy()).to(network.device))
    except ValueError as error:
        if SINGLE_SAMPLE in str(error):
            raise single_sample_error(f"client {alone[0]} holds {parts[alone[0]].size:,}", config.batch_size) from error
    network.load(model)
