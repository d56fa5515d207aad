"""Client-level central differential privacy: what a round makes known of its clients is one noised mean.

Every client takes part with probability q, by the operating system's entropy. Its update, statistics included, is
shortened to the norm C; the sum gets normal noise of z · C per value, and is divided by q · N, not by the number that
answered. Pruning and everything else starts from that mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from .. import arrays
from ..errors import MethodError, RunError
from ..methods import Update
from ..model import SparseModel
from ..notices import notice
from .accountant import Accountant, noise_for
from .bounds import VARIANCE
from .entropy import normal
from .releases import Releases
from .robust import Doubles
from .settings import MergeSettings

LOUD = 5.0  # a noised mean whose noise is so many times as long as an update can be learns little


def with_spare(rounds: int) -> int:
    """The releases that a budget is for: some rounds may be replayed after a crash."""
    return rounds + ceil(rounds / 50)


def settled_noise(settings: MergeSettings, rate: float, rounds: int) -> float:
    """The noise of a private run: as it was set, or as its ε needs; and an error where noise and ε do not fit."""
    if not settings.dp_noise:
        return noise_for(settings.epsilon, settings.delta, rate, with_spare(rounds))
    if settings.epsilon:
        found = Accountant(rate, settings.dp_noise, settings.delta, rounds).epsilon(rounds)
        if found > settings.epsilon:
            raise RunError(
                f"{rounds:,} rounds with dp_noise {settings.dp_noise:g} cost ε = {found:.3g}, and epsilon is "
                f"{settings.epsilon:g}. Leave dp_noise out: it is found; or raise epsilon, or play fewer rounds."
            )
    return settings.dp_noise


class Privacy:
    """The privacy of a run: its noise, and what was spent."""

    def __init__(
        self, settings: MergeSettings, clients: int, rate: float, rounds: int, releases: Releases | None = None
    ) -> None:
        self.settings, self.clients, self.rate = settings, clients, rate
        self.releases = releases or Releases()
        self.noise = settings.dp_noise or settled_noise(settings, rate, rounds)
        self._warned = False
        self._accountant = Accountant(rate, self.noise, settings.delta, with_spare(rounds))

    @property
    def expected(self) -> float:
        """The expected number of clients in a round, and the denominator of every mean."""
        return self.rate * self.clients

    @property
    def epsilon(self) -> float:
        """What was spent so far."""
        return self._accountant.epsilon(self.releases.count)

    def begin(self, round: int, model: SparseModel) -> PrivateRound:
        """One round that starts from `model`; refused if the budget does not reach."""
        self._warn(model)
        budget, after = self.settings.epsilon, self._accountant.epsilon(self.releases.count + 1)
        if budget and after > budget:
            raise RunError(
                f"round {round} would spend ε = {after:.4g}, and epsilon is {budget:g}: {self.releases.count:,} noised "
                f"sums were released, those of replayed rounds included. Go on with --resume and a larger --epsilon, "
                f"or take the model of the last round."
            )
        return PrivateRound(self, round, model)

    def _warn(self, model: SparseModel) -> None:
        """Say once if the noise drowns the updates."""
        loud = self.noise * model.nonzero**0.5 / self.expected
        if loud > LOUD and not self._warned:
            notice(
                f"the noise of a round is {loud:.3g} times as long as any update may be: the model will learn little. "
                f"More clients per round ({self.expected:g} are expected), a larger epsilon and fewer weights help."
            )
        self._warned = True

    def spend(self, round: int) -> None:
        """Count a release."""
        self.releases.add(round, self.noise, self.rate)


class PrivateRound:
    """One round: `combined` is all that leaves it."""

    def __init__(self, run: Privacy, round: int, model: SparseModel) -> None:
        self._run, self._round, self._model = run, round, model
        self.changed: dict[str, str] = {}

    @property
    def epsilon(self) -> float:
        """What the run has cost so far."""
        return float(f"{self._run.epsilon:.5g}")

    def least(self, least: int) -> int:
        """A round needs no number of clients: whether there were enough would say who took part."""
        return 0

    def bounded(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The updates; their bound is the clipping."""
        yield from updates

    def combined(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The noised mean, as often as clients are expected, so that the mean of it is itself."""
        model, clip = self._model, self._run.settings.dp_clip
        kept = kept_values(model)
        total = clipped_sum(updates, model, clip)
        self._run.spend(self._round)
        noised = (total + self._run.noise * clip * normal(total.size)) / self._run.expected
        weights = np.zeros(model.layout.total, np.float32)
        before = model.host_weights
        weights[kept] = before[kept] + noised
        for spec in model.layout.statistics:
            if spec.name.rpartition(".")[2] == VARIANCE:  # noise may push it below zero
                place = model.layout.slices[spec.name]
                weights[place] = np.maximum(weights[place], 0)
        made = SparseModel(model.layout, weights, model.host_mask)
        merged = Update(made if isinstance(model.weights, np.ndarray) else made.beside(model.weights), samples=1)
        for client in range(max(1, round(self._run.expected))):
            yield replace(merged, client=client)

    def facts(self, refused: Any, after: SparseModel) -> dict[str, Any]:
        """The ledger's line as it may be published: expected numbers in the place of those that tell who took part."""
        asked, before = round(self._run.expected), self._model.nonzero
        return {
            "clients": asked,
            "download_params": asked * before,
            "upload_params": asked * before,
            "paper_params": asked * (before + after.nonzero),
            "download_bytes": None,
            "upload_bytes": None,
            "train_loss": None,
            "refused": {},
            "epsilon": self.epsilon,
        }


def kept_values(model: SparseModel) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The values that a round can change: survivors and statistics."""
    mask = model.host_mask
    return np.concatenate([mask, np.ones(model.layout.total - mask.size, np.bool_)])


def clipped_sum(updates: Iterable[Update], model: SparseModel, clip: float) -> Doubles:
    """Σ of the updates, each shortened to the norm `clip`: one client more or less moves it by `clip` at most."""
    kept = kept_values(model)
    before = model.host_weights[kept].astype(np.float64)
    total = np.zeros(before.size)
    for update in updates:
        if update.scores is not None or update.sent:
            raise MethodError(
                "differential privacy covers the models that clients send, and nothing beside them. "
                "Received: scores, or arrays beside a model. Use a method without them."
            )
        moved = arrays.to_numpy(update.model.weights)[kept] - before
        norm = float(np.sqrt(np.square(moved).sum()))
        total += moved * min(1.0, clip / norm) if norm else moved
    return total
