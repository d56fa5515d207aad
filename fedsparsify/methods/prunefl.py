"""PruneFL (Jiang et al., 2022): keep the weights that lower the risk most for the time that they cost.

Before the first round one random client trains and reconfigures the model a few times; its model, weights and mask, is
what the federation starts from. Then, every `readjust` rounds, the smallest kept weights of every kernel compete with
all pruned ones: by g², summed up over the round's local steps, over time.

A round takes c + Σ t_j over the kept entries j; t_j is the same within a layer. `times` says what they are: "uniform"
(every entry the same, c as large as 14 % of all of them together: what the authors' figures for 28×28 images come to,
of which sending an entry, the same for all, is the most), "measured" (training steps on the machine where the run
starts, once; the figures take its place in the run's config.toml) or the figures themselves, "c,t,t,…", a t for every
kernel and what follows it.

Departures. g² comes from the steps of the readjusting round, not of all rounds since the last one: clients keep no
state. The first client reconfigures after every local epoch over all its samples. There is no readjustment after the
last round, where nothing would train what it adds. As in the authors' code only kernels are pruned; unlike in the
FedSparsify authors' baseline, what competes is g², not the signed gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..model import Layout, Mask, SparseModel
from ..options import option
from ..schedule import check_at_least, check_fraction
from ..scores import Scores, keep_count, keep_in_each, magnitude
from .base import Client, Fit, Method, Score, Update, tally, tally_scored

UNIFORM_CONSTANT = 0.14


@dataclass(frozen=True, kw_only=True)
class PruneFL(Method):
    """One client finds the first mask; every few rounds weights compete by g² over time, and may return."""

    first_round: ClassVar[int] = 0
    exact: ClassVar[bool] = False  # there is no target: the rule decides how many stay
    regrows: ClassVar[bool] = True

    share: float = option(0.3, "share s of a kernel's kept weights that may go in a readjustment")
    half_life: float = option(1000.0, "rounds in which that share halves")
    readjust: int = option(50, "rounds between readjustments")
    reconfigurations: int = option(5, "readjustments of the first client, before round 1")
    times: str = option("uniform", 'time of a training step: "uniform", "measured" or "c,t,t,…", a t for every kernel')

    def __post_init__(self) -> None:
        check_fraction("method.share", self.share)
        check_at_least("method.readjust", self.readjust, 1)
        check_at_least("method.reconfigurations", self.reconfigurations, 1)
        if not self.half_life > 0:
            raise ConfigError(f"method.half_life must be positive. Received: {self.half_life!r}.")
        if self.times != "measured":
            read_times(self.times)

    def settled(self, measure_times: Callable[[], str]) -> PruneFL:
        """Measure the times where the user asks for it."""
        return replace(self, times=measure_times()) if self.times == "measured" else self

    def cohort(self, round: int) -> float | None:
        """Round 0 asks one client."""
        return None if round else 1

    def readjusts(self, round: int) -> bool:
        """Whether the mask is made anew at the end of a round."""
        return round % self.readjust == 0 and round < self.rounds

    def client(self, round: int, model: SparseModel) -> Client:
        """Find the first model in round 0; fit afterwards, with an eye on g² where it will be needed."""
        if round:
            return (yield Score(model, by="squares") if self.readjusts(round) else Fit(model))
        for _ in range(self.reconfigurations):
            update = yield Score(model, by="squares", epochs=1)
            assert update.scores is not None
            model = self.readjusted(0, update.model, update.scores)
        return replace(update, model=model, scores=None)

    def merge(self, round: int, model: SparseModel, updates: Iterable[Update], rng: np.random.Generator) -> SparseModel:
        """Weighted mean; at times a new mask."""
        if not (round and self.readjusts(round)):
            return tally(updates).mean()
        sums, squares = tally_scored(updates)
        return self.readjusted(round, sums.mean(), squares)

    def readjusted(self, round: int, model: SparseModel, squares: Scores) -> SparseModel:
        """The model under its new mask; what returns starts at zero."""
        share = self.share * 0.5 ** (round / self.half_life)
        keep = worth_its_time(model.on_host(), squares, self.times, share)
        return SparseModel.masked(model.layout, model.weights, keep)


def worth_its_time(model: SparseModel, squares: Scores, times: str, share: float) -> Mask:
    """PruneFL's rule: what may not go stays; the rest is added, best first, while it raises Σg² / (c + Σt)."""
    layout, gains = model.layout, squares.astype(np.float64)
    constant, cost = time_of_each(times, layout)
    stays = keep_in_each(magnitude(model), left_after(model, share), layout, among=model.mask)
    rivals = np.flatnonzero(~stays)  # kernels' entries only: nothing else is ever pruned
    worth = np.full(layout.trainable, np.inf)
    worth[rivals] = gains[rivals] / cost[rivals]
    best = rivals[np.argsort(-worth[rivals], kind="stable")]
    gain = gains[stays].sum() + np.cumsum(gains[best]) - gains[best]  # of all that was added before each
    time = constant + cost[stays].sum() + np.cumsum(cost[best]) - cost[best]
    refused = np.flatnonzero(worth[best] * time <= gain)
    added = int(refused[0]) if refused.size else best.size
    return keep_count(worth, int(np.count_nonzero(stays)) + added)


def left_after(model: SparseModel, share: float) -> list[int]:
    """How many entries of each tensor stay whatever comes: of kernels all but a share, of the others all."""
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
            f"kernel, positive. Received: {text!r}."
        )
    return [constant, *layers]


def time_of_each(text: str, layout: Layout) -> tuple[float, NDArray[np.float64]]:
    """The constant c, and the t of each trainable entry: of other tensors that of the kernel before them."""
    ranks = np.cumsum([len(spec.shape) > 1 for spec in layout.tensors])  # how many kernels there are up to each tensor
    constant, *layers = read_times(text) or [UNIFORM_CONSTANT * layout.trainable] + [1.0] * int(ranks[-1])
    if len(layers) != ranks[-1]:
        raise ConfigError(
            f"method.times must name the time of each of the network's {ranks[-1]} kernels. Received: {len(layers)}."
        )
    each = [layers[max(rank - 1, 0)] if layers else 1.0 for rank in ranks]
    return constant, np.repeat(each, [spec.size for spec in layout.tensors])
