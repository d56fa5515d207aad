"""SSFL (Ohib et al., TMLR 2026): one mask for all clients by |g ⊙ w|, found by all of them before training.

In round 0 every client is sent the initial weights and scores them on one random minibatch. The server averages the
scores and keeps the highest of all weight tensors together; every later round is FedAvg under that mask. What travels:
dense weights down and dense scores up in round 0, the mask once, and then the kept values both ways.

Departures. Scores are weighted by samples as in the paper's text; the authors' code weights clients equally. The
minibatch is not augmented, and the network is in training mode (the same with group norm, which the authors have). The
sparsity is exact over all trainable entries; biases and norms are not pruned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..model import SparseModel
from ..options import option
from ..schedule import check_at_least
from .requests import Score
from .snip import Snip


@dataclass(frozen=True, kw_only=True)
class SSFL(Snip):
    """Fixed mask by the clients' mean of |g ⊙ w| at initialisation; clients fit under it, the server averages."""

    sparsity: float = option(0.5, "sparsity of the mask, a fraction in [0, 1)")
    probe: Literal["client", "all"] = option("all", "which clients score: one at random, or all by samples")
    samples: int = option(16, "random samples in the batch that a client scores with; 0: per_class of each class")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("method.samples", self.samples, 0)

    def question(self, model: SparseModel) -> Score:
        """The gradient on one minibatch."""
        return Score(model, by="gradient", per_class=self.per_class, samples=self.samples)
