"""Methods and scores that were tried for FedSparsify+ and are no part of it; docs/log.md has the figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import nn
from validation import held_back

from fedsparsify import Fit, SparseModel, Update, option
from fedsparsify.arrays import magnitude
from fedsparsify.methods import FedSparsifyGlobal, ServerContext
from fedsparsify.networks import cnn
from fedsparsify.scores import keep_top, lamp


@dataclass(frozen=True, kw_only=True)
class Remembering(FedSparsifyGlobal):
    """Base: the server's purge sees an array that it keeps from round to round."""

    averages = True

    def finish(self, round: int, mean: SparseModel, rng: np.random.Generator) -> SparseModel:
        """Nothing: the purge follows in `merge`."""
        return mean

    def merge(self, round, model, updates: Iterable[Update], rng, server: ServerContext):
        """Average, then purge by a score of the model and of what is kept."""
        made = super().merge(round, model, updates, rng, server)
        mean, state = made if isinstance(made, tuple) else (made, {})
        kept = self.kept(model, mean, server.state.get("kept"))
        target = self.schedule(round)
        if mean.pruned < int(target * mean.layout.trainable):
            scores = self.scores(mean.with_trainable(self.seen(mean, kept)), rng)
            mean = mean.under(keep_top(scores, target, among=mean.mask, least=self.least(mean)))
        return mean, {**state, "kept": kept}


@dataclass(frozen=True, kw_only=True)
class AveragedMask(Remembering):
    """Masks are decided on a running average of the models."""

    memory: float = option(0.7, "share of the average that stays in a round")

    def kept(self, model, mean, before):
        """The running average."""
        now = mean.trainable_weights
        return now if before is None else self.memory * before + (1 - self.memory) * now

    def seen(self, mean, kept):
        """What is scored."""
        return kept


@dataclass(frozen=True, kw_only=True)
class Moved(Remembering):
    """Weights count by their size times the way that they went from their initial values."""

    def kept(self, model, mean, before):
        """The initial values."""
        return model.trainable_weights if before is None else before

    def seen(self, mean, kept):
        """What is scored."""
        return (magnitude(mean.trainable_weights) * magnitude(mean.trainable_weights - kept)) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Powered(FedSparsifyGlobal):
    """Clients train under powerpropagation, in which small weights move little and large ones much."""

    power: float = option(1.25, "its exponent")

    def fit(self, model: SparseModel) -> Fit:
        """What a client is asked to train."""
        return Fit(model, power=self.power)


def cnn_with_group_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's network, with norms of eight groups in place of its batch norms."""
    module = cnn(shape, classes)
    for place, layer in enumerate(module):
        if isinstance(layer, nn.BatchNorm2d):
            module[place] = nn.GroupNorm(8, layer.num_features)
    return module


def share_of_variance(model: SparseModel) -> np.ndarray:
    """Magnitude relative to its filter's standard deviation, where a batch norm follows a convolution.

    A batch norm takes away the scale of what it normalises, so that the magnitudes of such weights mean nothing across
    filters. Input sizes are those of the batch norm before: γ² + β². Both are known to the server.
    """
    arrays = model.host_tensors()
    made = {name: np.abs(arrays[name]) for name in arrays}
    names = [spec.name for spec in model.layout.tensors if len(spec.shape) > 1]
    size = None
    for name in names:
        weight = arrays[name]
        if size is not None and weight.ndim == 4 and size.size == weight.shape[1]:
            made[name] = made[name] * size.reshape(1, -1, 1, 1)
        place = name.rpartition(".")[0]
        norm = f"{int(place) + 1}" if place.isdigit() else ""
        if f"{norm}.running_var" in arrays:
            made[name] = made[name] / np.sqrt(arrays[f"{norm}.running_var"] + 1e-3).reshape(-1, 1, 1, 1)
            size = np.sqrt(arrays[f"{norm}.weight"] ** 2 + arrays[f"{norm}.bias"] ** 2)
        else:
            size = None
    return np.concatenate([made[spec.name].ravel() for spec in model.layout.tensors])


@lru_cache
def some_inputs() -> np.ndarray:
    """Samples of FashionMNIST's training part, flat: what clients would take the sizes of inputs on."""
    return held_back("fashion-mnist").x_train[:2000].reshape(2000, -1)


def lamp_by_inputs(model: SparseModel) -> np.ndarray:
    """LAMP of w · √mean(x²), for a perceptron: x are the inputs of the weight, one for a bias.

    Clients would send the mean squares of a layer's inputs: 1,040 values for `fc`.
    """
    x, factors, arrays = some_inputs(), [], model.host_tensors()
    names = [spec.name for spec in model.layout.tensors]
    for weight, bias in zip(names[::2], names[1::2], strict=True):
        size = np.sqrt(np.square(x).mean(axis=0))
        factors += [np.broadcast_to(size, arrays[weight].shape).ravel(), np.ones(arrays[bias].size, np.float32)]
        x = np.maximum(x @ arrays[weight].T + arrays[bias], 0)
    return lamp(model.with_trainable(model.trainable_weights * np.concatenate(factors).astype(np.float32)))
