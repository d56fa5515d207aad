"""FedRTS (Ma et al., NeurIPS 2025): layers of a fixed size, whose mask is drawn by Thompson sampling.

Every link (an entry of a weight tensor) has a Beta(a, b) posterior, from a = b = 1, that says how likely it belongs to
the mask. Budgets K of weight tensors are ERK's. With k = ⌊α/2 · (1 + cos(π t/T_end)) · K⌋, round t ≤ T_end counts

- for a link in the mask: X = γ · (is it among the K − k largest of the mean?) + (1 − γ) · (share of the clients, by
  samples, for which it is among their own K − k largest);
- in adjusting rounds, every ΔT, for the others: X = γ · ½ + (1 − γ) · (share of the clients that name it: each names
  the k pruned links with the largest gradients on one batch, after training).

Then a += λX and b += λ(1 − X). In adjusting rounds ξ ~ Beta(a, b) is drawn for every link, and each tensor keeps its K
highest. New links start at zero. Names travel as a set of places, without values.

Departures. The mask starts with the largest initial weights, as in the authors' code; the paper draws it at random. γ
weights the mean as in the paper's equation; its appendix and the code weight the clients with it (the same at the
default ½). The authors' pseudo-code masks gradients before links are named, which would name none; as in their
equation, they are not masked here. In their code client 0's vote is the mean's; here it is its own. Biases, norms and
the last layer are not pruned, and the sparsity over all trainable entries is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..average import MeanOf, Tally
from ..errors import ConfigError
from ..model import Floats, Layout, SparseModel
from ..options import option
from ..schedule import ConstantSchedule, Schedule, check_at_least, check_fraction
from ..scores import keep_count, keep_in_each, magnitude
from .base import Merged, Method
from .context import ClientContext, ServerContext
from .feddst import budgets
from .requests import Client, Fit, Score, Update


@dataclass(frozen=True, kw_only=True)
class FedRTS(Method):
    """Constant sparsity per layer; a mask drawn from what clients and their mean voted for over the rounds."""

    regrows: ClassVar[bool] = True

    sparsity: float = option(0.8, "constant sparsity S, a fraction in [0, 1)")
    alpha: float = option(0.4, "share α of a layer's links that an adjustment may move, at first")
    readjust: int = option(10, "rounds ΔT between adjustments")
    end: int = option(0, "last round T_end of the adjustments; 0: three fifths of the rounds")
    scale: float = option(10.0, "λ: how much one round counts in a posterior")
    trust: float = option(0.5, "γ: weight of the mean against the clients' own votes, in [0, 1]")
    samples: int = option(64, "random samples in the batch for the gradient")

    def __post_init__(self) -> None:
        check_fraction("method.alpha", self.alpha)
        for name, least in (("readjust", 1), ("end", 0), ("samples", 1)):
            check_at_least(f"method.{name}", getattr(self, name), least)
        if not 0 < self.scale < float("inf"):
            raise ConfigError(f"method.scale must be positive. Received: {self.scale!r}.")
        if not 0 <= self.trust <= 1:
            raise ConfigError(f"method.trust must lie in [0, 1]. Received: {self.trust!r}.")

    @property
    def schedule(self) -> Schedule:
        """The same sparsity from the start."""
        return ConstantSchedule(self.sparsity)

    @property
    def last(self) -> int:
        """The last round in which the mask may change."""
        return self.end or max(1, 3 * self.rounds // 5)

    def adjusts(self, round: int) -> bool:
        """Whether the mask is drawn anew in a round."""
        return round <= self.last and round % self.readjust == 0

    def check(self, model: SparseModel) -> None:
        """Refuse a sparsity that cannot be reached."""
        self.budgets(model.layout)

    def budgets(self, layout: Layout) -> list[int]:
        """How many entries each tensor keeps: all of the last weight tensor, of biases and of norms."""
        return budgets(layout, self.sparsity, spared=last_weight(layout))

    def moved(self, round: int, layout: Layout) -> list[int]:
        """How many links of each tensor the round may move: k. None of those that are not pruned."""
        share = self.alpha / 2 * (1 + math.cos(math.pi * round / self.last))
        return [
            int(share * kept) if kept < spec.size else 0
            for kept, spec in zip(self.budgets(layout), layout.tensors, strict=True)
        ]

    def begin(self, model: SparseModel) -> SparseModel:
        """Every weight tensor pruned to its budget by magnitude."""
        return model.under(keep_in_each(magnitude(model), self.budgets(model.layout), model.layout))

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Fit; in adjusting rounds also name the pruned links with the largest gradients."""
        update = yield Fit(model)
        if not self.adjusts(round):
            return update
        answer = yield Score(update.model, by="gradient", samples=self.samples)
        assert answer.scores is not None
        counts = self.moved(round, model.layout)
        named = keep_in_each(np.abs(answer.scores), counts, model.layout, among=~model.host_mask)
        return replace(update, scores=arrays.to_numpy(named).astype(np.float32))

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> Merged:
        """The mean; posteriors after the round's votes; in adjusting rounds a mask that is drawn from them."""
        layout, mask, counts = model.layout, model.host_mask, self.budgets(model.layout)
        stay = [kept - k for kept, k in zip(counts, self.moved(round, layout), strict=True)]
        links = np.flatnonzero(mask)  # few of all, in a sparse model: votes are about these alone
        sums, votes, names = Tally(), MeanOf(), MeanOf()
        for update in updates:
            sums.add(update.model, update.samples)
            if round <= self.last:
                votes.add(largest(update.model, stay, links), update.samples)
            if update.scores is not None:
                names.add((update.scores != 0).astype(np.float32), update.samples)
        mean = sums.mean(model.mask)
        if round > self.last:
            return mean
        agreed = self.trust * largest(mean, stay, links) + (1 - self.trust) * votes.value
        wins, losses = posterior(server, layout)
        wins[links] += self.scale * agreed
        losses[links] += self.scale * (1 - agreed)
        if not self.adjusts(round):
            return mean, {"posterior": np.concatenate([wins, losses])}
        wanted = self.trust / 2 + (1 - self.trust) * names.value
        wins += self.scale * wanted * ~mask
        losses += self.scale * (1 - wanted) * ~mask
        drawn = keep_in_each(rng.beta(wins, losses).astype(np.float32), counts, layout)
        after = SparseModel.masked(layout, mean.weights, drawn)
        return after, {"posterior": np.concatenate([wins, losses])}


def largest(model: SparseModel, counts: Sequence[int], links: NDArray[np.int64]) -> Floats:
    """For each of these links: one if it is among the largest weights of its tensor, else zero."""
    sizes = np.abs(arrays.to_numpy(model.weights[arrays.placed(links, model.weights)]))
    found = np.zeros(len(links), np.float32)
    for spec, count in zip(model.layout.tensors, counts, strict=True):
        place = model.layout.slices[spec.name]
        part = slice(*np.searchsorted(links, (place.start, place.stop)))
        found[part] = keep_count(sizes[part], count)
    return found


def posterior(server: ServerContext | None, layout: Layout) -> tuple[Floats, Floats]:
    """a and b of every entry.

    They are kept as one array: state with one number per entry is zero where the model is pruned, and pruned links have
    a posterior, too.
    """
    known = (server.state if server else {}).get("posterior")
    both = np.ones(2 * layout.trainable, np.float32) if known is None else arrays.to_numpy(known).copy()
    return both[: layout.trainable], both[layout.trainable :]


def last_weight(layout: Layout) -> tuple[str, ...]:
    """The last weight tensor of a network, unless it is the only one."""
    names = [spec.name for spec in layout.tensors if len(spec.shape) > 1]
    return tuple(names[1:][-1:])
