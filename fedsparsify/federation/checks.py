"""Checks of a network before any training: its samples, its outputs, its loss and metrics, its batches.

In: a run's config and its data set. Out: nothing; an error, or a notice of what will not be part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..config import RunConfig
from ..data import Dataset
from ..data.convert import SPLITTING
from ..data.dataset import channels_last
from ..data.inputs import arrays_of, has_integers
from ..data.partition import Indices
from ..errors import ConfigError, DataError
from ..keyed import seeded
from ..model import SparseModel
from ..networks import build
from ..notices import notice
from ..tasks import is_own
from ..text import described
from ..training.fixed_norms import why_not_fixed
from ..training.flat import FlatModule
from ..training.inputs import as_torch, call
from ..training.losses import is_plain, loss_of, same_but_ones
from ..training.objective import Objective, objective_of
from ..training.worker import SINGLE_SAMPLE, single_sample_error


def check_network(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a network that does not take these samples or give what the loss takes; name the state it will lose."""
    if config.evaluate != "clients" and not len(dataset.y_test):
        raise DataError(
            f"{dataset.name} has no test samples, x_test and y_test, which evaluate {config.evaluate!r} needs. Add "
            f'them, or evaluate on samples that clients hold out: evaluate = "clients" (--evaluate clients). '
            f"{SPLITTING}"
        )
    if config.shape not in ((), dataset.shape) or config.classes not in (0, dataset.outputs):
        raise DataError(
            f"shape and classes must be those of {dataset.name}, {dataset.shape} and {dataset.outputs}; leave "
            f"them out to take them from there. Received: {list(config.shape)} and {config.classes}."
        )
    objective = objective_of(config, config.metrics, dataset.targets, dataset.classes)  # unknown names are refused here
    _check_augmentation(config, dataset)
    first, module = (_built(config, dataset) for _ in range(2))
    if config.fixed_norms and (why := why_not_fixed(module)):
        raise ConfigError(f"fixed_norms {config.fixed_norms:g} does not fit network {config.network!r}: {why}.")
    with torch.no_grad():
        for x in _extremes(dataset):
            output = _output(first.eval(), config, dataset, x)
        _check_output(config, dataset, output)
        _check_metrics(objective, dataset, output)
    network = FlatModule(module, torch.device("cpu"))
    before = dict(module.named_parameters())
    output = _output(module.train(), config, dataset, dataset.x_train[:2])
    after = dict(module.named_parameters())
    if replaced := [name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)]:
        raise ConfigError(
            f"network {config.network!r} replaces its parameter {min(replaced)!r} in forward, so that no optimiser "
            f"would train it. Write into the parameter instead."
        )
    _check_output(config, dataset, output)
    loss = _loss(config, output, torch.from_numpy(dataset.y_train[: len(output)]))
    try:
        (output.sum() if is_plain(config) else loss).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ConfigError(f"network {config.network!r} cannot be trained: {str(error).splitlines()[0]}") from error
    if changed := sorted(network.changed()):
        notice(
            f"forward changes {', '.join(changed[:5])}{' …' * (len(changed) > 5)} of the network, which is neither a "
            f"parameter nor a persistent float buffer: it is not part of the model, and starts anew for every client."
        )


def _built(config: RunConfig, dataset: Dataset) -> nn.Module:
    """A copy of the network; an error says if the samples' channels may be in the wrong place."""
    try:
        return build(config.network, dataset.shape, dataset.outputs, config.seed)
    except ConfigError as error:
        if hint := channels_last(dataset.shape):
            raise ConfigError(f"{error} {hint}") from error
        raise


def _check_augmentation(config: RunConfig, dataset: Dataset) -> None:
    """Augmentation moves and mirrors images; refuse samples that are none."""
    shape = dataset.shape
    if config.augment == "none":
        return
    image = isinstance(shape, tuple) and len(shape) == 3 and not has_integers(dataset.x_train)
    if not image or channels_last(shape) or dataset.y_train.ndim > 2:
        raise ConfigError(
            f"augment {config.augment!r} takes images of (channels, height, width) with one target each. "
            f"Received: samples of shape {shape} ({dataset.name}) with {dataset.about_targets}."
        )


def _extremes(dataset: Dataset) -> list[Any]:
    """Two test samples; of integers, before these the samples with the largest and the smallest one of each input."""
    found = []
    for x in (dataset.x_train, dataset.examples) if has_integers(dataset.x_train) else ():
        for part in arrays_of(x):
            flat = part.reshape(len(part), -1)
            found.append(x[np.array([flat.max(1).argmax(), flat.min(1).argmin()])])
    return [*found, dataset.examples[:2]]


def _output(module: nn.Module, config: RunConfig, dataset: Dataset, samples: Any) -> torch.Tensor:
    """What the network gives for some samples."""
    x = as_torch(samples).clone()
    try:
        with seeded(config.seed):
            output: torch.Tensor = call(module, x)
    except Exception as error:  # a user's forward may raise anything
        if SINGLE_SAMPLE in str(error):
            raise single_sample_error(f"{dataset.name} has {len(x)}", 2) from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"network {config.network!r} does not take samples of shape {dataset.shape} ({dataset.name}): "
            f"{reason}{_hint(dataset, samples)}"
        ) from error
    return output


def _hint(dataset: Dataset, samples: Any) -> str:
    """What may be wrong with samples that a network refuses."""
    if hint := channels_last(dataset.shape):
        return f". {hint}"
    if has_integers(dataset.x_train):
        least, most = (f([f(part) for part in arrays_of(samples)]) for f in (np.min, np.max))
        return f". Its samples are integers, here {least} … {most}; an embedding needs a row for each of them."
    if dataset.preprocessing.divisor == 255:
        return ". Bytes are taken for pixels and divided by 255; tokens need a larger integer type, such as int64."
    return ""


def _check_output(config: RunConfig, dataset: Dataset, output: object) -> None:
    """Refuse outputs of another shape than the loss takes; a user's own loss takes any tensor."""
    shape = dataset.y_train.shape[1:]
    sides = (dataset.outputs, *shape) if dataset.targets == "classes" else shape or (1,)
    what = "logits" if dataset.targets != "values" else "values"
    expected = f"network {config.network!r} must give ({', '.join(map(str, ('batch', *sides)))}) {what}"
    if is_own(config.loss):
        expected = f"network {config.network!r} must give its outputs"
    expected += f" for {dataset.name}"
    if not isinstance(output, torch.Tensor):
        raise ConfigError(f"{expected}, as one tensor. Received: {type(output).__name__}.")
    fits = tuple(output.shape[1:]) == sides and output.ndim > 0
    if dataset.targets != "classes":
        fits = same_but_ones(output, torch.empty(len(output), *shape)) if output.ndim else False
    if is_own(config.loss):
        fits = output.ndim > 0
    if not fits or output.dtype != torch.float32:
        raise ConfigError(
            f"{expected}, of float32. Received: {tuple(output.shape)} of {output.dtype}."
            f"{_target_hint(config, dataset, output)}"
        )


def _target_hint(config: RunConfig, dataset: Dataset, output: torch.Tensor) -> str:
    """Which loss may be meant instead."""
    y = dataset.y_train
    if is_own(config.loss) or output.dtype != torch.float32:
        return ""
    if dataset.targets == "classes" and y.ndim == 2 and y.max() == 1:
        if (y.sum(1) == 1).all():
            return " y_train looks one-hot; classes are given as numbers: y.argmax(1)."
        return " If y_train holds yes or no for each of several labels, use loss 'bce'."
    if dataset.targets == "classes" and output.shape[1:] == (1,):
        return " For two classes and one logit, use loss 'bce'; for regression, 'mse'."
    return ""


def _loss(config: RunConfig, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss of two samples; refuse a user's own that cannot be computed, or is not one number."""
    try:
        loss: object = loss_of(config)(output, target)
    except Exception as error:  # a user's function may raise anything
        shapes = f"outputs {tuple(output.shape)} and targets {tuple(target.shape)} of {target.dtype}"
        raise ConfigError(f"loss {config.loss!r} failed on {shapes}: {described(error)}.") from error
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
        got = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ConfigError(f"loss {config.loss!r} must return one number, the mean over the batch. Received: {got}.")
    return loss


def _check_metrics(objective: Objective, dataset: Dataset, output: torch.Tensor) -> None:
    """Call every metric once, so that one that fails is named before the first round."""
    target = torch.from_numpy((dataset.y_test if len(dataset.y_test) else dataset.y_train)[: len(output)])
    for metric in objective.metrics:
        metric(output, target)


def check_batches(network: FlatModule, config: RunConfig, parts: Sequence[Indices], dataset: Dataset) -> None:
    """Refuse a division that leaves some client a last batch of one sample, if the network cannot train on one."""
    alone = [client for client, part in enumerate(parts) if part.size % config.batch_size == 1]
    if not alone or config.batch_size == 1:
        return
    model = SparseModel.dense(network.layout, network.values())
    network.module.train()
    try:
        with torch.no_grad(), seeded(config.seed):
            call(network.module, as_torch(dataset.x_train[:1], network.device).clone())
    except ValueError as error:
        if SINGLE_SAMPLE in str(error):
            raise single_sample_error(f"client {alone[0]} holds {parts[alone[0]].size:,}", config.batch_size) from error
    network.load(model)
