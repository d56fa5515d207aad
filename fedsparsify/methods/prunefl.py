"""PruneFL (Jiang et al., 2022): keep the weights that lower the loss most for the time that they cost.

Before round 1, one random client trains and readjusts the model a few times. The federation starts from its weights and
mask. Then, every `readjust` rounds, the smallest kept weights of every weight tensor compete with all pruned ones. An
entry's score is g², summed over the round's local steps, divided by its time.

A round takes c + Σ t_j over the kept entries j; t_j is the same within a layer. The setting `times` gives these values:
"uniform" (the same t for every entry, and c equal to 14 % of all of them together, as the authors' figures for 28×28
images imply: most of the time is sending, which costs the same for every entry); "measured" (by training steps, once,
on the machine where the run starts; the run's config.toml then holds the values); or the values themselves,
"c,t,t,…", one t per weight tensor and the tensors after it.

Departures. g² comes from the steps of the readjusting round, not of all rounds since the last one: clients keep no
state. The first client readjusts after every local epoch over all its samples. There is no readjustment after the last
round, because nothing would train the new entries. As in the authors' code, only weight tensors are pruned; unlike in
the FedSparsify authors' baseline, g² competes, not the signed gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import to_numpy
from ..errors import ConfigError
from ..model import Floats, Layout, Mask, SparseModel
from ..options import option
from ..schedule import check_at_least, check_fraction
from ..scores import keep_count, keep_in_each, magnitude
from .base import Method, tally, tally_scored
from .context import ClientContext, ServerContext
from .requests import Client, Fit, Score, Update

UNIFORM_CONSTANT = 0.14


@dataclass(frozen=True, kw_only=True)
class PruneFL(Method):
    """One client finds the first mask; every few rounds weights compete by g² per time, and may return."""

    first_round: ClassVar[int] = 0
    exact: ClassVar[bool] = False  # there is no target sparsity: the rule decides how many entries stay
    regrows: ClassVar[bool] = True

    share: float = option(0.3, "share s of a weight tensor's kept entries that a readjustment may prune")
    half_life: float = option(1000.0, "rounds in which that share halves")
    readjust: int = option(50, "rounds between readjustments")
    reconfigurations: int = option(5, "readjustments of the first client, before round 1")
    times: str = option("uniform", 'time of a step: "uniform", "measured" or "c,t,t,…", one t per weight tensor')

    def __post_init__(self) -> None:
        check_fraction("method.share", self.share)
        check_at_least("method.readjust", self.readjust, 1)
        check_at_least("method.reconfigurations", self.reconfigurations, 1)
        if not self.half_life > 0:
            raise ConfigError(f"method.half_life must be positive. Received: {self.half_life!r}.")
        if self.times != "measured":
            read_times(self.times)

    def settled(self, measure_times: Callable[[], str]) -> PruneFL:
        """Measure the times if the user asks for it."""
        return replace(self, times=measure_times()) if self.times == "measured" else self

    def cohort(self, round: int) -> float | None:
        """One client in round 0."""
        return None if round else 1

    def readjusts(self, round: int) -> bool:
        """Whether a round ends with a new mask."""
        return round % self.readjust == 0 and round < self.rounds

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Find the first model in round 0; fit afterwards, with g² in the rounds that readjust."""
        if round:
            return (yield Score(model, by="squares") if self.readjusts(round) else Fit(model))
        for _ in range(self.reconfigurations):
            update = yield Score(model, by="squares", epochs=1)
            assert update.scores is not None
            model = self.readjusted(0, update.model, update.scores)
        return replace(update, model=model, scores=None)

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> SparseModel:
        """Weighted mean; in the rounds that readjust, a new mask."""
        if not (round and self.readjusts(round)):
            return tally(updates).mean()
        sums, squares = tally_scored(updates)
        return self.readjusted(round, sums.mean(), squares)

    def readjusted(self, round: int, model: SparseModel, squares: Floats) -> SparseModel:
        """The model under its new mask; entries that return start at zero."""
        share = self.share * 0.5 ** (round / self.half_life)
        keep = worth_its_time(model.on_host(), squares, self.times, share)
        return SparseModel.masked(model.layout, model.weights, keep)


def worth_its_time(model: SparseModel, squares: Floats, times: str, share: float) -> Mask:
    """PruneFL's rule: protected entries stay; the others are added, best first, while they raise Σg² / (c + Σt)."""
    layout, gains = model.layout, squares.astype(np.float64)
    constant, cost = time_of_each(times, layout)
    stays = keep_in_each(magnitude(model), left_after(model, share), layout, among=model.mask)
    candidates = np.flatnonzero(~stays)  # entries of weight tensors: no others are ever pruned
    worth = np.full(layout.trainable, np.inf)
    worth[candidates] = gains[candidates] / cost[candidates]
    best = candidates[np.argsort(-worth[candidates], kind="stable")]
    gain = gains[stays].sum() + np.cumsum(gains[best]) - gains[best]  # of all entries added before each
    time = constant + cost[stays].sum() + np.cumsum(cost[best]) - cost[best]
    refused = np.flatnonzero(worth[best] * time <= gain)
    added = int(refused[0]) if refused.size else best.size
    return to_numpy(keep_count(worth, int(np.count_nonzero(stays)) + added))


def left_after(model: SparseModel, share: float) -> list[int]:
    """How many entries of each tensor are protected: all but a share of weight tensors, all of the others."""
    counts = []
    for spec in model.layout.tensors:
        kept = int(np.count_nonzero(model.mask[model.layout.slices[spec.name]]))
        counts.append(kept - int(share * kept) if len(spec.shape) > 1 else kept)
    return counts


def read_times(text: str) -> list[float]:
    """`c,t,t,…` as numbers; nothing for `uniform`."""
    if text == "uniform":
        return []
    try:
        constant, *layers = [float(word) for word in text.split(",")]
    except ValueError:
        layers = []
    if not layers or not all(0 < t < float("inf") for t in layers) or not 0 <= constant < float("inf"):
        raise ConfigError(
            f'method.times must be "uniform", "measured" or "c,t,t,…": a constant, then the time of an entry of every '
            f"weight tensor, positive. Received: {text!r}."
        )
    return [constant, *layers]


def time_of_each(text: str, layout: Layout) -> tuple[float, NDArray[np.float64]]:
    """The constant c, and the t of each trainable entry; a bias has that of the weight tensor before it."""
    ranks = np.cumsum([len(spec.shape) > 1 for spec in layout.tensors])  # weight tensors up to each tensor
    constant, *layers = read_times(text) or [UNIFORM_CONSTANT * layout.trainable] + [1.0] * int(ranks[-1])
    if len(layers) != ranks[-1]:
        raise ConfigError(
            f"method.times must name the time of each of the network's {ranks[-1]} weight tensors. "
            f"Received: {len(layers)}."
        )
    each = [layers[max(rank - 1, 0)] if layers else 1.0 for rank in ranks]
    return constant, np.repeat(each, [spec.size for spec in layout.tensors])
