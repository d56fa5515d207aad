"""FedSparsify-Local (Stripelis et al., 2022): clients purge, and the server keeps the entries that most of them kept.

Departure: a tie keeps the weight, as in the paper's Eq. 3; the authors' code floors N/2.
The sparsity reached may differ from the target, because clients keep different entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..model import SparseModel
from ..options import option
from ..scores import keep_top, magnitude
from .base import Scheduled, tally
from .context import ClientContext, ServerContext
from .requests import Client, Fit, Update


@dataclass(frozen=True, kw_only=True)
class FedSparsifyLocal(Scheduled):
    """Clients fit and prune by magnitude; the server averages under the majority of their masks."""

    exact: ClassVar[bool] = False

    aggregate: Literal["majority", "average"] = option(
        "majority", "keep the entries that most clients kept, or (the appendix's ablation) that any client kept"
    )

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Fit, then purge to the round's sparsity."""
        update = yield Fit(model)
        keep = keep_top(magnitude(update.model), self.schedule(round), among=model.mask)
        return update.under(keep)

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> SparseModel:
        """Weighted mean under the majority's mask."""
        sums = tally(updates)
        return sums.mean(sums.majority() if self.aggregate == "majority" else None)
