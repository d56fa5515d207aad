"""Base of the methods that prune before training: clients score, and the server makes one mask for the whole run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..model import Floats, SparseModel
from ..options import option
from ..purging import check_reachable, least_kept
from ..schedule import ConstantSchedule, Schedule, check_at_least, check_fraction
from ..scores import keep_top, weight_tensors_first
from .base import Averaging, Merged, tally_scored
from .context import ClientContext, ServerContext
from .requests import Client, Score, Update


@dataclass(frozen=True, kw_only=True)
class AtInitialisation(Averaging):
    """Round 0 scores the initialised model and prunes it; the rounds after it are FedAvg under that mask."""

    first_round: ClassVar[int] = 0
    averages: ClassVar[bool] = True
    corrects: ClassVar[bool] = True

    sparsity: float = option(0.9, "sparsity of the mask, a fraction in [0, 1)")
    probe: Literal["client", "all"] = option("client", "which clients score: one at random, or all by samples")
    per_class: int = option(10, "samples per class in the batch that a client scores with")

    exclude: tuple[str, ...] = option((), "weight tensors that are not pruned either: names or patterns, or last")
    min_density: float = option(0.0, "share of its entries that every tensor keeps, so that no layer dies")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("method.per_class", self.per_class, 1)
        check_fraction("method.min_density", self.min_density)

    def check(self, model: SparseModel) -> None:
        """Refuse a sparsity that cannot be reached."""
        check_reachable(model.layout, self.sparsity, self.exclude, self.min_density)

    @property
    def schedule(self) -> Schedule:
        """The same sparsity from round 0 on."""
        return ConstantSchedule(self.sparsity)

    def question(self, model: SparseModel) -> Score:
        """The request of round 0."""
        raise NotImplementedError

    def score(self, model: SparseModel, quantity: Floats) -> Floats:
        """A score per entry, higher = keep, from the client's answer."""
        raise NotImplementedError

    def cohort(self, round: int) -> float | None:
        """One client in round 0, or all."""
        return None if round else {"client": 1, "all": math.inf}[self.probe]

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Score in round 0, fit afterwards."""
        if round:
            return (yield from super().client(round, model, me))
        answer = yield self.question(model)
        assert answer.scores is not None
        return answer.only_scores(self.score(model.on_host(), answer.scores))

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> Merged:
        """Make the mask in round 0; average afterwards."""
        if round:
            return super().merge(round, model, updates, rng, server)
        _, scores = tally_scored(updates)
        least = least_kept(model.layout, self.exclude, self.min_density)
        return model.under(keep_top(weight_tensors_first(scores, model.layout), self.sparsity, least=least))
