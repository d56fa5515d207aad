"""Bounds that are always on: what one client may claim, and how far it may move the model.

In: the updates of a round as they come. Out: the same updates; one that breaks a bound is scaled down, counted for
fewer samples, or has a `fault` for which the server leaves it out. No client ends a run.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .. import arrays
from ..arrays import Array
from ..methods import Update
from ..model import Floats, Layout, SparseModel
from .settings import MergeSettings

ROUNDS = 5  # whose norms are recent
ENOUGH = 9  # so many clients outweigh earlier rounds where all move further, as after a change of the learning rate
VARIANCE = "running_var"  # how torch's batch norms name it


@dataclass(frozen=True)
class Measured:
    """An update within its bounds, and how far the client moved before: its weights, and its statistics."""

    update: Update
    norm: float = 0.0
    statistics_norm: float = 0.0
    usable: bool = True
    sampled: Floats = field(default_factory=lambda: np.zeros(0, np.float32))  # how far some of its weights moved


class Norms:
    """Norms of one part of the accepted updates, in this round and the last few; all but zeros."""

    def __init__(self) -> None:
        self._rounds: deque[list[float]] = deque(maxlen=ROUNDS)
        self._now: list[float] = []

    def add(self, norm: float) -> None:
        """Note a norm of this round."""
        if norm > 0:
            insort(self._now, norm)

    def end_round(self, norms: Iterable[float | None]) -> None:
        """Keep the norms of the updates that were merged."""
        self._rounds.append([norm for norm in norms if norm and norm > 0])
        self._now = []

    def begin_round(self) -> None:
        """Forget a round that was not finished."""
        self._now = []

    def median(self, last: bool = False) -> float:
        """The recent median; this round's own if it is higher and many agree, or if there is no other; 0: unknown."""
        recent = _median(sorted(norm for norms in self._rounds for norm in norms))
        many = len(self._now) >= ENOUGH or (last and not recent)
        return max(recent, _median(self._now)) if many else recent


def _median(norms: Sequence[float]) -> float:
    """The lower median: of two, the smaller one. 0 if there is none."""
    return norms[(len(norms) - 1) // 2] if norms else 0.0


class Bounds:
    """The bounds of a run. It remembers the norms of recent rounds."""

    def __init__(self, settings: MergeSettings) -> None:
        self._settings = settings
        self.weights, self.statistics = Norms(), Norms()

    def begin_round(self) -> None:
        """Forget what a round that was not finished has left."""
        self.weights.begin_round()
        self.statistics.begin_round()

    def apply(
        self, updates: Iterable[Update], model: SparseModel, reasons: dict[str, str], places: Array | None = None
    ) -> Iterator[Measured]:
        """The updates within their bounds, each with its norms; `reasons` says which ones had to be changed.

        `places` are the weights of which an update's own movement is kept.

        An update that is too long for what is known so far waits for the end of the round, when all norms are known.
        """
        waiting: list[Measured] = []
        for update in updates:
            found = self._measured(update, model, reasons, places)
            if found.update.fault or not found.usable:
                yield found
                continue
            self.weights.add(found.norm)
            self.statistics.add(found.statistics_norm)
            waiting.append(found)
            ready = [one for one in waiting if self._excess(one) <= 1]
            waiting = [one for one in waiting if self._excess(one) > 1]
            yield from ready
        for found in waiting:
            excess = self._excess(found, last=True)
            yield found if excess <= 1 else self._scaled(found, model, reasons)

    def _measured(self, update: Update, model: SparseModel, reasons: dict[str, str], places: Array | None) -> Measured:
        if update.fault or update.model.layout != model.layout or not update.finite or not update.samples > 0:
            return Measured(update, usable=False)  # refused by name where updates are filtered
        most = self._settings.max_samples
        if most and update.samples > most:
            reasons[f"client {update.client}"] = f"it claims {update.samples:,} samples; {most:,} are counted"
            update = replace(update, samples=most)
        trainable = model.layout.trainable
        norm, sampled = arrays.distance_and_parts(update.model.weights[:trainable], model.weights[:trainable], places)
        if model.layout.total == trainable:
            return Measured(update, norm, sampled=sampled)
        statistics = arrays.to_numpy(update.model.weights[trainable:])
        if fault := negative_variance(statistics, model.layout):
            return Measured(replace(update, fault=fault), usable=False)
        moved = arrays.distance(statistics, arrays.to_numpy(model.weights[trainable:]))
        return Measured(update, norm, moved, sampled=sampled)

    def _excess(self, found: Measured, last: bool = False) -> float:
        """How many times too long an update is."""
        if not self._settings.norm_bound:
            return 1.0
        return max(
            self._ratio(found.norm, self.weights, last), self._ratio(found.statistics_norm, self.statistics, last)
        )

    def _ratio(self, norm: float, norms: Norms, last: bool) -> float:
        bound = self._settings.norm_bound * norms.median(last)
        return norm / bound if bound else float(norm > 0 and not last) * 2

    def _scaled(self, found: Measured, model: SparseModel, reasons: dict[str, str]) -> Measured:
        """The update with weights and statistics brought back within their bounds."""
        made, update, trainable = (
            arrays.to_numpy(found.update.model.weights).copy(),
            found.update,
            model.layout.trainable,
        )
        before, said = arrays.to_numpy(model.weights), []
        for part, norm, known, what in (
            (slice(0, trainable), found.norm, self.weights, "its update is"),
            (slice(trainable, None), found.statistics_norm, self.statistics, "the update of its statistics is"),
        ):
            if (excess := self._ratio(norm, known, last=True)) > 1:
                moved = made[part].astype(np.float64) - before[part]
                made[part] = before[part] + moved / excess
                median = known.median(last=True)
                said.append(f"{what} {norm / median:.3g} times as long as the median of {median:.3g}; it was shortened")
        name = f"client {update.client}"
        reasons[name] = "; ".join([*([reasons[name]] if name in reasons else []), *said])
        bounded = SparseModel.masked(model.layout, arrays.placed(made, update.model.weights), update.model.mask)
        sampled = found.sampled / max(self._ratio(found.norm, self.weights, last=True), 1.0)
        return replace(found, update=replace(update, model=bounded), sampled=sampled)


def negative_variance(statistics: Floats, layout: Layout) -> str:
    """What is wrong with the variances among a model's statistics; empty: nothing."""
    for spec in layout.statistics:
        if spec.name.rpartition(".")[2] == VARIANCE and spec.size:
            place = layout.slices[spec.name]
            least = float(statistics[place.start - layout.trainable : place.stop - layout.trainable].min())
            if least < 0:
                return f"its variance {spec.name!r} is negative ({least:.3g})"
    return ""
