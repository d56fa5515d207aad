"""FedSparsify-Local (Stripelis et al., 2022): clients purge, and the server keeps the entries that most of them kept.

Departure: a tie keeps the weight, as in the paper's Eq. 3; the authors' code floors N/2.
The sparsity reached may differ from the target, because clients keep different entries. With `exclude` or `min_density`
the server adds the highest entries that some client kept where the majority leaves a tensor too few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from ..errors import ConfigError
from ..model import SparseModel
from ..options import option
from ..purging import draws
from ..scores import with_least
from .base import tally
from .context import ClientContext, ServerContext
from .purging import Scheduled
from .requests import Client, Fit, Update


@dataclass(frozen=True, kw_only=True)
class FedSparsifyLocal(Scheduled):
    """Clients fit and prune by magnitude; the server averages under the majority of their masks."""

    exact: ClassVar[bool] = False

    aggregate: Literal["majority", "average"] = option(
        "majority", "keep the entries that most clients kept, or (the appendix's ablation) that any client kept"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if draws(self.score):
            raise ConfigError(
                f"method.score must not be random for fedsparsify-local: every client would keep other entries, and "
                f"most of them none in common. Received: {self.score!r}."
            )

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Fit, then purge to the round's sparsity."""
        update = yield Fit(model)
        purged = self.purged(round, update.model, np.random.default_rng(0))  # no score of this method draws
        return replace(update, model=purged)

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
        if self.aggregate == "average":
            return sums.mean()
        majority, least = sums.majority(), self.least(model)
        if least:
            anyone = sums.mean()
            majority = with_least(majority, self.scores(anyone, rng), anyone.mask, least)
        return sums.mean(majority)
