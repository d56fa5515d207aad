"""The aggregation of a run, in the one round loop: bounds on every update, then a rule that merges them.

In: a run's settings, and the rounds that it has played. Out: per round, a stream of updates for the method's merge
(those of the clients, or what a robust rule made of them), and what the ledger says of each client.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..methods import Update
from ..model import SparseModel
from .bounds import Bounds, Measured
from .privacy import Privacy, PrivateRound
from .robust import merge_rows
from .settings import MergeSettings, Rule

SAMPLED = 8192  # weights of an update that are kept to the end of a round, to compare it with the merged one
Columns: TypeAlias = dict[str, list[float | None]]  # one list per quantity, one value per client


class Aggregator:
    """How a run turns the updates of a round into what its method merges."""

    def __init__(
        self,
        settings: MergeSettings | None = None,
        history: Sequence[Mapping[str, list[float | None]]] = (),
        privacy: Privacy | None = None,
    ) -> None:
        self.settings = settings or MergeSettings()
        self.privacy = privacy
        self.bounds = Bounds(self.settings)
        for columns in history:
            self.remember(columns)

    def begin(self, round: int, model: SparseModel) -> RoundAggregator | PrivateRound:
        """The aggregation of one round that starts from `model`."""
        if self.privacy:
            return self.privacy.begin(round, model)
        self.bounds.begin_round()
        return RoundAggregator(self, round, model)

    def remember(self, columns: Mapping[str, list[float | None]]) -> None:
        """Take a round's norms, as the ledger has them, into the recent ones."""
        if columns:
            self.bounds.weights.end_round(columns.get("norm", []))
            self.bounds.statistics.end_round(columns.get("statistics_norm", []))


class RoundAggregator:
    """One round: `bounded`, then what the server accepts goes through `combined`; `columns` after the merge."""

    def __init__(self, run: Aggregator, round: int, model: SparseModel) -> None:
        self._run, self._round, self._model = run, round, model
        self._places = arrays.places(model.mask, SAMPLED) if round else None
        self._seen: list[Measured] = []
        self._merged: NDArray[np.float64] | None = None
        self.changed: dict[str, str] = {}  # client → which bound it broke

    def least(self, least: int) -> int:
        """The least number of usable answers, of that in the run's settings."""
        return least

    def bounded(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The updates within their bounds; one that must be left out has a `fault`."""
        if not self._round:  # answers are scores, and models keep nothing
            yield from updates
            return
        for found in self._run.bounds.apply(updates, self._model, self.changed, self._places):
            if found.usable:
                self._seen.append(replace(found, update=replace(found.update, model=self._model)))  # not the model
            yield found.update

    def combined(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The accepted updates. By a robust rule each has the merged model, so that their mean, too, is that model."""
        rule = self._run.settings.merge
        if rule == "mean":
            yield from updates
            return
        if found := list(updates):
            one = merged_update(found, self._model, rule, self._run.settings.hostile)
            if self._round:
                self._merged = self._sampled(one.model) - self._sampled(self._model)
            # As many as there were: methods may count them.
            yield from (replace(update, model=one.model, scores=one.scores, sent=one.sent) for update in found)

    def facts(self, refused: Container[str], after: SparseModel) -> dict[str, Any]:
        """What the ledger says besides."""
        return {"bounded": self.changed, "updates": self.columns(refused)}

    def columns(self, refused: Container[str] = ()) -> Columns:
        """What the ledger says of each client whose update was merged, in the order of the clients."""
        seen = [found for found in self._seen if f"client {found.update.client}" not in refused]
        if not seen:
            return {}
        seen.sort(key=lambda found: found.update.client)
        samples = np.stack([found.sampled for found in seen]).astype(np.float64)
        weights = np.array([found.update.samples for found in seen], np.float64)
        merged = weights @ samples / weights.sum() if self._merged is None else self._merged
        columns: Columns = {
            "client": [found.update.client for found in seen],
            "samples": [found.update.samples for found in seen],
            "loss": [short(found.update.loss) for found in seen],
            "norm": [short(found.norm) for found in seen],
        }
        if self._model.layout.statistics:
            columns["statistics_norm"] = [short(found.statistics_norm) for found in seen]
        columns["cosine"] = [round(cosine(one, merged), 3) for one in samples]
        self._run.remember(columns)
        return columns

    def _sampled(self, model: SparseModel) -> NDArray[np.float64]:
        """The weights by which updates are compared."""
        return np.zeros(0) if self._places is None else arrays.to_numpy(model.weights[self._places]).astype(np.float64)


def merged_update(updates: Sequence[Update], model: SparseModel, rule: Rule, hostile: float) -> Update:
    """What the rule makes of many updates: model, scores, and what is sent beside."""
    each = [update.scores for update in updates if update.scores is not None]
    scores = merge_rows(np.stack(each), rule, hostile).astype(np.float32) if each else None
    mask = model.host_mask
    if not any(arrays.count(update.model.mask) for update in updates):
        mask = np.zeros_like(mask)  # answers with scores alone
    kept = np.concatenate([mask, np.ones(model.layout.total - mask.size, np.bool_)])
    before = model.host_weights
    rows = np.stack([update.model.host_weights[kept] for update in updates])
    rows -= before[kept]
    weights = np.zeros_like(before)
    weights[kept] = before[kept] + merge_rows(rows, rule, hostile)
    merged = SparseModel(model.layout, weights, mask)
    merged = merged.beside(model.weights) if not isinstance(model.weights, np.ndarray) else merged
    sent = {
        name: arrays.placed(
            merge_rows(np.stack([arrays.to_numpy(update.sent[name]) for update in updates]), rule, hostile).astype("f"),
            model.weights,
        )
        for name in updates[0].sent
        if all(name in update.sent for update in updates)
    }
    return replace(updates[0], model=merged, scores=scores, sent=sent)


def cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The cosine of the angle between two vectors; 0 if one has no length."""
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / length if length else 0.0


def short(value: float) -> float | None:
    """A number with six digits: what a resumed run reads is what a run that never stopped has. None: not finite."""
    return float(f"{value:.6g}") if isfinite(value) else None
