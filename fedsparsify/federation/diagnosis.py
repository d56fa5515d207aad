"""The terms of the paper's Theorem 1 that a run can measure, round by round.

The theorem bounds the mean of ‖m ⊙ ∇f(w)‖² by noise, by how far f was from its optimum at the start, and by the sum of
what the purges removed. Measuring them costs a second sum over the updates and one gradient per round, so a run does it
only with `diagnose`. In: the updates of a round, and the model before and after the merge. Out: a `Diagnosis`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..average import Tally
from ..methods import Update
from ..model import SparseModel


@dataclass(frozen=True)
class Probed:
    """A model on a fixed set of training samples: its loss, and the norm of the gradient under its mask."""

    loss: float
    gradient_norm: float


@dataclass(frozen=True)
class Diagnosis:
    """The terms of the theorem in a line of the history; round 0 has no weights to average, and purges nothing."""

    gradient_norm: float  # of the purged model, on the probe
    probe_loss: float
    purged_norm: float | None = None  # ‖w − w ⊙ m‖ of the mean w that reached the purge
    purge_bound: float | None = None  # ‖w‖ · √(share of the kept entries that went): holds where the smallest go
    paper_bound: float | None = None  # ‖w‖ · (s_t − s_{t−1}), as the paper writes it


class MeanOfUpdates:
    """Passes the updates on to the merge and sums them: afterwards it knows the mean that the purge started from.

    Methods that average in another way (over holders) are measured by the plain mean, too. What clients of
    FedSparsify-Local purge themselves is not seen here.
    """

    def __init__(self, updates: Iterable[Update]) -> None:
        self._updates, self._tally = updates, Tally()

    def __iter__(self) -> Iterator[Update]:
        for update in self._updates:
            self._tally.add(update.model, update.samples)
            yield update

    def diagnosis(self, round: int, probed: Probed, before: SparseModel, merged: SparseModel, step: float) -> Diagnosis:
        """What `merged` lacks of the mean; `step` is the rise of the schedule's sparsity in this round."""
        if not round:
            return Diagnosis(probed.gradient_norm, probed.loss)
        mean, after = self._tally.mean().on_host(), merged.on_host()
        weights = mean.host_weights[: mean.layout.trainable].astype(np.float64)
        whole = float(np.linalg.norm(weights))
        kept = before.layout.trainable - before.pruned
        went = max(0, merged.pruned - before.pruned)
        return Diagnosis(
            probed.gradient_norm,
            probed.loss,
            float(np.linalg.norm(weights[~after.mask])),
            whole * math.sqrt(went / kept) if kept else 0.0,
            whole * max(0.0, step),
        )
