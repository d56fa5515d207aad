"""SparsyFed (Guastella et al., ICLR 2025): clients train by powerpropagation and send their largest weights.

A client trains v, of which the network takes sign(v)·|v|^β, and in every round sends the largest weights of all weight
tensors together. Gradients of weights are taken from each layer's largest inputs alone. The server averages v; what
any client kept is in the next model. A weight that is zero gets no gradient: nothing outside the masks of round 1
returns.

The global model holds the network's values. The mean is taken of v all the same, and the largest of either are the same
entries. Weight tensors start at the standard deviation 1/√(inputs of an output).

Departures. Weights are chosen, not updates, as in the authors' code; their text has updates. Initial values are the
network's own, mapped by their rank to the truncated normal distribution that the authors draw from. The sparsity of
what a client sends is exact over all trainable entries; biases and norms are never pruned. The variant without β is
not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from .. import arrays
from ..errors import ConfigError
from ..model import Floats, SparseModel
from ..options import option
from ..scores import weight_tensors
from .base import tally
from .context import ServerContext
from .requests import Fit, Update
from .topk import TopK

CUT_SPREAD = 0.8796  # standard deviation of the normal distribution that is cut at two


@dataclass(frozen=True, kw_only=True)
class SparsyFed(TopK):
    """Clients fit under powerpropagation and send their largest weights; the server averages before the power."""

    regrows: ClassVar[bool] = False

    power: float = option(1.25, "exponent β of powerpropagation, at least 1")
    prune_inputs: bool = option(True, "take gradients of weights from a layer's largest inputs alone")

    def __post_init__(self) -> None:
        if not 1 <= self.power < float("inf"):
            raise ConfigError(f"method.power must be 1 or more. Received: {self.power!r}.")

    def begin(self, model: SparseModel) -> SparseModel:
        """Weight tensors in the distribution of the authors' initialisation."""
        flat = model.host_weights.copy()
        for spec in model.layout.tensors:
            if len(spec.shape) > 1:
                place = model.layout.slices[spec.name]
                flat[place] = truncated_normal(flat[place], prod(spec.shape[1:]) ** -0.5)
        return SparseModel(model.layout, arrays.placed(flat, model.weights), model.mask)

    def fit(self, model: SparseModel) -> Fit:
        """What a client is asked to train."""
        return Fit(model, power=self.power, prune_inputs=self.prune_inputs)

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> SparseModel:
        """The weighted mean of v, as the network's values."""
        rooted = (replace(update, model=raised(update.model, 1 / self.power)) for update in updates)
        return raised(tally(rooted).mean(), self.power)


def truncated_normal(values: Floats, spread: float) -> Floats:
    """Values of the same order with a normal distribution that is cut at two deviations, of this standard deviation."""
    normal = NormalDist()
    quantiles = np.linspace(normal.cdf(-2), normal.cdf(2), 4097)
    levels = [normal.inv_cdf(quantile) / CUT_SPREAD for quantile in quantiles.tolist()]
    ranks = np.empty(values.size)
    ranks[np.argsort(values, kind="stable")] = (np.arange(values.size) + 0.5) / values.size
    return (spread * np.interp(ranks, np.linspace(0, 1, 4097), levels)).astype(np.float32)


def raised(model: SparseModel, power: float) -> SparseModel:
    """The model with sign(w)·|w|^power in place of each w of a weight tensor."""
    if power == 1:
        return model
    here = np.flatnonzero(model.host_mask & weight_tensors(model.layout))
    where, weights = arrays.placed(here, model.weights), arrays.copy(model.weights)
    kept = arrays.to_numpy(weights[where])  # by numpy on every device, so that their bytes are the same
    arrays.put(weights, where, arrays.placed(np.sign(kept) * np.abs(kept) ** np.float32(power), weights))
    return SparseModel(model.layout, weights, model.mask)
