"""The only round loop. It knows a method, and a federation that carries its questions to the clients.

In: a federation, a method and the model to start from. Out: per round, the merged model and its line of history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from math import isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..aggregation import Aggregator
from ..errors import ClientError
from ..methods import Method, ServerContext, Update, begun, cohort_of, merged, target_of
from ..model import SparseModel
from ..state import State, finite
from .diagnosis import MeanOfUpdates, Probed
from .ledger import Entry


class Evaluated(Protocol):
    """How good a model is."""

    @property
    def accuracy(self) -> float | None: ...  # noqa: D102
    @property
    def loss(self) -> float: ...  # noqa: D102
    @property
    def metrics(self) -> dict[str, float]: ...  # noqa: D102
    @property
    def client_views(self) -> Mapping[str, dict[str, Any]]: ...  # noqa: D102


class Federation(Protocol):
    """Carries a method's question to the clients and streams their answers back."""

    def ask(self, method: Method, round: int, model: SparseModel, sent: State) -> Iterator[Update]:
        """The clients' answers, as they come; `sent` goes to them beside the model."""

    def evaluate(self, model: SparseModel) -> Evaluated:
        """How good the model is on the server's test samples."""

    @property
    def kept(self) -> dict[int, State]:
        """What clients keep across rounds, where a simulation holds it for them."""


class UpdateFilter:
    """Yields the usable updates to the merge, and counts what was accepted and what was refused."""

    def __init__(self, updates: Iterable[Update], expected: SparseModel) -> None:
        self._updates, self._expected = updates, expected
        self.refused: dict[str, str] = {}
        self.accepted = self.upload_params = self.samples = 0
        self.download_bytes: int | None = None
        self.upload_bytes: int | None = None
        self._loss = 0.0
        self._with_loss = 0

    def __iter__(self) -> Iterator[Update]:
        for update in self._updates:
            self.upload_params += update.params
            if update.upload_bytes is not None and update.download_bytes is not None:
                self.download_bytes = (self.download_bytes or 0) + update.download_bytes
                self.upload_bytes = (self.upload_bytes or 0) + update.upload_bytes
            if reason := self._fault(update):
                self.refused[f"client {update.client}"] = reason
                continue
            self.accepted += 1
            self.samples += update.samples
            if isfinite(update.loss):  # else the client is merged and its loss is left out
                self._loss += update.loss * update.samples
                self._with_loss += update.samples
            yield update

    def _fault(self, update: Update) -> str:
        if update.fault:
            return update.fault
        if update.model.layout != self._expected.layout:
            return "its model has another layout"
        if not update.model.finite:
            weights = update.model.on_host().weights
            count = int(np.count_nonzero(~np.isfinite(weights)))
            return f"{count:,} of its weights are NaN or infinite"
        if not finite(update.sent):
            return "what it sent beside its model is NaN or infinite"
        trainable = self._expected.layout.trainable
        if update.scores is not None and update.scores.shape != (trainable,):
            return f"it sent scores of shape {update.scores.shape} for {trainable:,} entries"
        if update.scores is not None and not np.isfinite(update.scores).all():
            return f"{int(np.count_nonzero(~np.isfinite(update.scores))):,} of its scores are NaN or infinite"
        return "" if update.samples > 0 else "it has no samples"

    @property
    def train_loss(self) -> float:
        """Mean of the clients' training losses, by samples."""
        return self._loss / self._with_loss if self._with_loss else float("nan")


class Played(NamedTuple):
    """What a round ends with."""

    model: SparseModel
    entry: Entry
    state: State  # the server's


def run_rounds(
    federation: Federation,
    method: Method,
    model: SparseModel,
    first: int,
    last: int,
    seed: int,
    min_clients: int = 1,
    probe: Callable[[SparseModel], Probed] | None = None,
    state: State | None = None,
    clients: int = 1,
    aggregator: Aggregator | None = None,
) -> Iterator[Played]:
    """Run the rounds `first … last` from `model`, yielding what each ends with.

    With a `probe`, each entry also has the terms of the paper's Theorem 1. `state` is the server's, of the round
    before `first`; `clients` is the number of clients of the run. The `aggregator` bounds the updates, and may put
    merged ones in their place.
    """
    state, aggregator = state or {}, aggregator or Aggregator()
    if first == method.first_round:
        model = begun(method, model)
    for t in range(first, last + 1):
        began = time.perf_counter()
        rng = np.random.default_rng(np.random.SeedSequence([seed, t], spawn_key=(1,)))
        sent = {name: state[name] for name in method.broadcasts if name in state}
        aggregation = aggregator.begin(t, model)
        filtered = UpdateFilter(aggregation.bounded(federation.ask(method, t, model, sent)), model)
        cohort = cohort_of(method, t)
        least = min_clients if cohort is None else int(min(min_clients, cohort))
        updates = aggregation.combined(enough(filtered, aggregation.least(least), t))
        mean = MeanOfUpdates(updates) if probe else None
        after, state = merged(method, t, model, mean or updates, rng, ServerContext(state, clients))
        evaluation = federation.evaluate(after)
        asked = filtered.accepted + len(filtered.refused)
        entry = Entry(
            round=t,
            accuracy=evaluation.accuracy,
            loss=evaluation.loss,
            metrics=evaluation.metrics,
            target_sparsity=target_of(method, t),
            sparsity=after.sparsity,
            nonzero=after.nonzero,
            clients=filtered.accepted,
            download_params=asked * (model.nonzero + len(sent) * (model.layout.trainable - model.pruned)),
            upload_params=filtered.upload_params,
            download_bytes=filtered.download_bytes,
            upload_bytes=filtered.upload_bytes,
            paper_params=asked * (model.nonzero + after.nonzero) if t else 0,
            train_loss=filtered.train_loss,
            seconds=time.perf_counter() - began,
            refused=filtered.refused,
            empty=list(after.empty),
            client_views=dict(evaluation.client_views),
        )
        entry = replace(entry, **aggregation.facts(filtered.refused, after))
        if probe and mean:
            step = target_of(method, t) - (target_of(method, t - 1) if t > 1 else 0.0)
            entry = replace(entry, **asdict(mean.diagnosis(t, probe(after), model, after, step)))
        yield Played(after, entry, state)
        model = after


class TooFewAnswers(ClientError):
    """A round has fewer usable answers than `min_clients`."""

    def __init__(self, round: int, usable: int, least: int, refused: Mapping[str, str]) -> None:
        self.usable, self.least, self.refused = usable, least, dict(refused)
        why = "; ".join(f"{client}: {reason}" for client, reason in refused.items()) or "no client answered"
        diverged = any("NaN or infinite" in reason for reason in refused.values())
        advice = " Where weights are not finite, training diverged: lower lr." if diverged else ""
        super().__init__(f"round {round}: {usable} of at least {least} clients gave a usable update ({why}).{advice}")


def enough(filtered: UpdateFilter, least: int, round: int) -> Iterator[Update]:
    """The updates that may be merged; an error at their end if they were too few."""
    yield from filtered
    if filtered.accepted < least:
        raise TooFewAnswers(round, filtered.accepted, least, filtered.refused)
