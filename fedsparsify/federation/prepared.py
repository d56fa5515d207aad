"""A data set as a run takes it: targets for its loss, and integers or floats for its network.

In: a run's config and a data set. Out: the data set itself, or one with other types.
"""

from __future__ import annotations

import torch
from torch import nn

from ..config import RunConfig
from ..data import Dataset, load_dataset
from ..data.dataset import check_first_class, floats
from ..data.inputs import Arrays, has_integers, mapped
from ..keyed import seeded
from ..networks import NETWORKS, build
from ..notices import notice
from ..tasks import targets_of
from ..training.inputs import as_torch, call


def load_for(config: RunConfig) -> Dataset:
    """The run's data set, ready for its loss and its network."""
    return prepared(config, load_dataset(config.data, targets_of(config.loss)))


def prepared(config: RunConfig, dataset: Dataset) -> Dataset:
    """The data set with the targets that the loss takes, and samples of the type that the network takes."""
    dataset = dataset.with_targets(targets_of(config.loss))
    check_first_class(dataset)
    if dataset.clients is not None and config.split != "column":
        notice(
            f"{dataset.name} says who holds each sample, and split is {config.split!r}. "
            f"To divide by it, use split 'column'."
        )
    if not has_integers(dataset.x_train):
        return dataset
    module = None
    if config.network not in NETWORKS:
        module = build(config.network, dataset.shape, dataset.outputs, config.seed)
    return dataset if takes_integers(module, dataset.x_train, config.seed) else dataset.with_floats()


def as_network_takes(config: RunConfig, module: nn.Module, x: Arrays) -> Arrays:
    """Samples in the type that a network takes."""
    if has_integers(x) and not takes_integers(module, x, config.seed):
        return mapped(x, floats)
    return x


def takes_integers(module: nn.Module | None, x: Arrays, seed: int) -> bool:
    """Whether integers stay integers: unless the network takes floats alone. None stands for a network of ours."""
    if module is None:
        return False
    return _runs(module, x[:2], seed) or not _runs(module, mapped(x[:2], floats), seed)


def _runs(module: nn.Module, x: Arrays, seed: int) -> bool:
    try:
        with torch.no_grad(), seeded(seed):
            call(module.eval(), as_torch(x))
    except Exception:  # a user's forward may raise anything; the checks before a run say what
        return False
    return True
