"""SNIP (Lee et al., 2019): keep the connections that the loss is most sensitive to, |g ⊙ w|, before training.

In a federation, one random client scores (`probe = "client"`, as in Stripelis et al., 2022), or all clients score and
the server averages their scores by samples (`probe = "all"`, as in SSFL). The batch is stratified over the classes
that a client holds. The mask is made for the same initial weights that are then trained.

As in the original, only weight tensors are pruned. Biases start at zero, so that |g ⊙ w| would prune all of them. They
and the parameters of norms stay. Weight tensors lose more instead, so that the sparsity over all entries is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import Floats, SparseModel
from ..scores import snip
from .at_initialisation import AtInitialisation
from .requests import Score


@dataclass(frozen=True, kw_only=True)
class Snip(AtInitialisation):
    """Fixed mask by |g ⊙ w| at initialisation; clients fit under it, the server averages."""

    def question(self, model: SparseModel) -> Score:
        """The gradient on one batch."""
        return Score(model, by="gradient", per_class=self.per_class)

    def score(self, model: SparseModel, quantity: Floats) -> Floats:
        """|g ⊙ w|."""
        return snip(model, quantity)
