"""FedDST (Bibikar et al., 2022): every layer has a fixed number of entries, and the mask moves within it.

Budgets are ERK's (Evci et al., 2020): the density of a weight tensor is proportional to the sum of its dimensions over
their product. Every `readjust` rounds a client drops its smallest kept entries, adds as many pruned entries with the
largest gradients, at zero, and trains on. The server averages each entry over the clients that kept it and prunes every
weight tensor back to its budget by magnitude. The share that moves falls along a cosine to zero at round `end`.

Departures. Biases and the parameters of norms are never pruned; the budgets of weight tensors are such that the
sparsity over all trainable entries is exact. A readjusting client trains `settle` epochs more than others: otherwise
its new entries would still be zero, and the server would prune them. The gradient is taken after the drop, on a
stratified batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..average import HolderTally
from ..errors import ConfigError
from ..model import Layout, SparseModel
from ..options import option
from ..schedule import ConstantSchedule, Schedule, check_at_least, check_fraction
from ..scores import keep_in_each, magnitude
from .base import Method, tally
from .context import ClientContext, ServerContext
from .requests import Client, Fit, Score, Update


@dataclass(frozen=True, kw_only=True)
class FedDST(Method):
    """Constant sparsity per layer; clients drop by magnitude and regrow by gradient, the server averages holders."""

    regrows: ClassVar[bool] = True

    sparsity: float = option(0.8, "constant sparsity S, a fraction in [0, 1)")
    alpha: float = option(0.01, "share α of the kept weights that a readjustment moves, at first")
    readjust: int = option(15, "rounds R between readjustments")
    end: int = option(0, "round from which the mask stays the same; 0: half of the rounds")
    settle: int = option(1, "epochs that a client trains after a readjustment")
    per_class: int = option(10, "samples per class in the batch for the gradient")

    def __post_init__(self) -> None:
        check_fraction("method.alpha", self.alpha)
        for name, least in (("readjust", 1), ("end", 0), ("settle", 1), ("per_class", 1)):
            check_at_least(f"method.{name}", getattr(self, name), least)

    @property
    def schedule(self) -> Schedule:
        """The same sparsity from the start."""
        return ConstantSchedule(self.sparsity)

    def begin(self, model: SparseModel) -> SparseModel:
        """Every weight tensor pruned to its budget by magnitude, as in the authors' code."""
        return model.under(keep_in_each(magnitude(model), budgets(model.layout, self.sparsity), model.layout))

    def moved(self, round: int) -> float:
        """The share of the kept weights that the round moves."""
        end = self.end or self.rounds // 2
        if round % self.readjust or round >= end:
            return 0.0
        return self.alpha / 2 * (1 + math.cos(math.pi * round / end))

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Fit; in readjusting rounds drop, regrow and fit on."""
        update = yield Fit(model)
        if not (share := self.moved(round)):
            return update
        layout, counts = model.layout, budgets(model.layout, self.sparsity)
        fewer = [
            n - int(share * n) if len(spec.shape) > 1 else n for n, spec in zip(counts, layout.tensors, strict=True)
        ]
        dropped = update.model.under(keep_in_each(magnitude(update.model), fewer, layout, among=model.mask))
        answer = yield Score(dropped, by="gradient", per_class=self.per_class)
        assert answer.scores is not None
        grown = keep_in_each(np.where(dropped.on_host().mask, np.inf, np.abs(answer.scores)), counts, layout)
        settled = yield Fit(SparseModel.masked(layout, dropped.weights, grown), epochs=self.settle)
        return replace(settled, loss=update.loss)

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> SparseModel:
        """Mean over the clients that kept an entry, then every weight tensor back to its budget."""
        mean = tally(updates, HolderTally()).mean()
        return mean.under(
            keep_in_each(magnitude(mean), budgets(mean.layout, self.sparsity), mean.layout, among=mean.mask)
        )


def budgets(layout: Layout, sparsity: float, spared: Collection[str] = ()) -> list[int]:
    """How many entries each tensor keeps: ERK's share of weight tensors, all of the others and of the spared ones."""
    sizes = np.array([spec.size for spec in layout.tensors])
    pruned = [len(spec.shape) > 1 and spec.name not in spared for spec in layout.tensors]
    raw = np.array(
        [sum(spec.shape) / spec.size if one else np.inf for one, spec in zip(pruned, layout.tensors, strict=True)]
    )
    left = layout.trainable - int(sparsity * layout.trainable)
    dense = np.isinf(raw)
    while True:
        budget = left - int(sizes[dense].sum())
        if budget < 0:
            raise ConfigError(
                f"method.sparsity leaves {left:,} entries, fewer than the {int(sizes[dense].sum()):,} of "
                f"{', '.join(['biases', 'norms', *spared])}, which the method never prunes. "
                f"Received: {sparsity!r}."
            )
        shares = np.where(dense, 0.0, raw * sizes)
        exact = np.where(dense, sizes, shares * budget / max(shares.sum(), 1e-300))
        full = ~dense & (exact >= sizes)
        if not full.any():
            break
        dense |= full
    counts = np.floor(exact).astype(np.int64)
    rest = left - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:rest]] += 1  # largest remainders first
    return [int(count) for count in counts]
