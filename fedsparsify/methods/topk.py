"""Top-K: clients train all weights and send the largest; the server averages. The plain baseline of SparsyFed's paper.

Every client sends the same number of weights, each client its own. What a client pruned counts as zero in the mean, and
what any client sent is in the next model: the server's sparsity is below the target, by how much clients differ. A
client trains the pruned entries of what it received, too, from zero.

As in the paper, only weight tensors are pruned. Biases and the parameters of norms are always sent, and weight tensors
lose more instead, so that the sparsity of what a client sends is exact over all trainable entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from .. import arrays
from ..errors import ConfigError
from ..model import SparseModel
from ..options import option
from ..schedule import ConstantSchedule, Schedule
from ..scores import keep_top, magnitude, weight_tensors, weight_tensors_first
from .base import Method
from .context import ClientContext
from .requests import Client, Fit


@dataclass(frozen=True, kw_only=True)
class TopK(Method):
    """Clients fit densely and send their largest weights; the server averages what it is sent."""

    exact: ClassVar[bool] = False
    regrows: ClassVar[bool] = True
    plain_fits: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    sparsity: float = option(0.95, "sparsity of what a client sends, a fraction in [0, 1)")

    @property
    def schedule(self) -> Schedule:
        """The same sparsity in every round."""
        return ConstantSchedule(self.sparsity)

    def check(self, model: SparseModel) -> None:
        """Refuse a sparsity that weight tensors alone cannot give."""
        size, spared = model.layout.trainable, int(np.count_nonzero(~weight_tensors(model.layout)))
        if size - int(self.sparsity * size) < spared:
            raise ConfigError(
                f"method.sparsity leaves {size - int(self.sparsity * size):,} of {size:,} entries, fewer than the "
                f"{spared:,} of biases and norms that the method never prunes. Received: {self.sparsity!r}."
            )

    def fit(self, model: SparseModel) -> Fit:
        """What a client is asked to train: every entry."""
        whole = arrays.filled(model.mask, model.layout.trainable, True, "bool")
        return Fit(SparseModel(model.layout, model.weights, whole))

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Fit, then keep the largest weights."""
        update = yield self.fit(model)
        scores = weight_tensors_first(magnitude(update.model), model.layout)
        return replace(update, model=update.model.under(keep_top(scores, self.sparsity, update.model.mask)))
