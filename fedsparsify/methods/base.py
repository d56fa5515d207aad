"""What a method is: both halves of a federated algorithm, without state, I/O or a training loop.

`client` is a generator. It yields requests (`Fit`) and is sent the answers, so the same code serves one worker, a
whole cohort advanced in lock-step, and a client at the other end of a network.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ..average import Tally
from ..model import Mask, SparseModel
from ..options import option
from ..schedule import ConstantSchedule, GradualSchedule, Schedule
from ..scores import Scores, keep_top, magnitude


@dataclass(frozen=True)
class Fit:
    """Request: train `model` on your data under its mask; the answer is an `Update`."""

    model: SparseModel
    epochs: int | None = None  # None: as many as the run says
    prox: float = 0.0  # μ of the proximal term towards `model`


@dataclass(frozen=True)
class Update:
    """What a client answers with: a model and the number of samples it stands for."""

    model: SparseModel
    samples: int
    loss: float = float("nan")
    # Filled in by whoever carried the question:
    client: int = -1
    download_bytes: int | None = None
    upload_bytes: int | None = None

    def under(self, mask: Mask) -> Update:
        """The same update with its model pruned to `mask`."""
        return replace(self, model=self.model.under(mask))


Request: TypeAlias = Fit
Client: TypeAlias = Generator[Request, Update, Update]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Fit at the clients, weighted mean at the server: FedAvg, and the base of every other method.

    A subclass is a frozen dataclass; its `option` fields are its config keys and flags. `rounds` is the run's.
    """

    rounds: int = 1

    @property
    def schedule(self) -> Schedule:
        """Target sparsity by round. Building it checks the settings."""
        return ConstantSchedule(0.0)

    @classmethod
    def default_momentum(cls, usual: float) -> float:
        """Local momentum where the user names none; `usual` is what the paper uses for the data set."""
        return usual

    def client(self, round: int, model: SparseModel) -> Client:
        """The client's half of one round."""
        return (yield Fit(model))

    def merge(self, round: int, model: SparseModel, updates: Iterable[Update], rng: np.random.Generator) -> SparseModel:
        """The server's half: fold the stream of updates into the next model."""
        return tally(updates).mean()


def tally(updates: Iterable[Update]) -> Tally:
    """Sum the updates up, each with the weight of its samples."""
    sums = Tally()
    for update in updates:
        sums.add(update.model, update.samples)
    return sums


@dataclass(frozen=True, kw_only=True)
class Purging(Method):
    """Base of the methods whose server prunes: weighted mean, then keep the best scores of what is left."""

    sparsity: float = option(0.9, "final sparsity S_T, a fraction in [0, 1)")

    def score(self, model: SparseModel, rng: np.random.Generator) -> Scores:
        """Score of each trainable weight, higher = keep."""
        return magnitude(model)

    def merge(self, round: int, model: SparseModel, updates: Iterable[Update], rng: np.random.Generator) -> SparseModel:
        """Weighted mean, then purge to the round's sparsity."""
        mean = super().merge(round, model, updates, rng)
        return mean.under(keep_top(self.score(mean, rng), self.schedule(round), among=mean.mask))


@dataclass(frozen=True, kw_only=True)
class Gradual(Purging):
    """Base of the methods that prune along Eq. 1."""

    initial: float = option(0.0, "initial sparsity S_0")
    start: int = option(1, "round t_0 at which pruning starts")
    every: int = option(1, "prune every F rounds")
    exponent: float = option(3.0, "exponent n: higher prunes earlier")

    @property
    def schedule(self) -> Schedule:
        """Eq. 1 with this method's settings."""
        return GradualSchedule(self.sparsity, self.rounds, self.initial, self.start, self.every, self.exponent)
