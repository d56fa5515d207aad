"""What a method is: both halves of a federated algorithm, without state, I/O or a training loop.

`client` is a generator. It yields requests (`Fit`, `Score`) and is sent the answers, so the same code serves one
worker, a whole cohort advanced in lock-step, and a client at the other end of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from ..average import MeanOf, Tally
from ..errors import ModelError
from ..model import Floats, Mask, SparseModel
from ..options import check_options, option
from ..schedule import ConstantSchedule, GradualSchedule, Schedule
from ..scores import Scores, keep_top, magnitude


@dataclass(frozen=True)
class Fit:
    """Request: train `model` on your data under its mask; the answer is an `Update`."""

    model: SparseModel
    epochs: int | None = None  # None: as many as the run says
    prox: float = 0.0  # μ of the proximal term towards `model`

    trains: ClassVar[bool] = True


@dataclass(frozen=True)
class Score:
    """Request: a raw quantity for every trainable entry, pruned ones included; the answer is an `Update` with `scores`.

    `gradient` is g of the mean loss on a batch with up to `per_class` samples of each class that the client holds;
    `hessian-gradient` is H g on such a batch. Both leave the model as it is. `squares` trains exactly as `Fit` does
    and adds up g² over its steps; the answer's model is the trained one.
    """

    model: SparseModel
    by: Literal["gradient", "hessian-gradient", "squares"]
    per_class: int = 10
    temperature: float = 1.0  # the batch's logits are divided by it
    epochs: int | None = None  # of `squares`; None: as many as the run says

    prox: ClassVar[float] = 0.0

    @property
    def trains(self) -> bool:
        """Whether it is answered by training, as a `Fit` is."""
        return self.by == "squares"


@dataclass(frozen=True)
class Update:
    """What a client answers with: a model and the number of samples it stands for; scores where they were asked for."""

    model: SparseModel
    samples: int
    loss: float = float("nan")
    client: int = -1  # filled in by whoever carried the question, as the bytes are
    scores: Floats | None = None  # (trainable,), in the host's memory
    download_bytes: int | None = None
    upload_bytes: int | None = None
    fault: str = ""  # why it must be left out, where the client knows

    def under(self, mask: Mask) -> Update:
        """The same update with its model pruned to `mask`."""
        return replace(self, model=self.model.under(mask))

    def only_scores(self, scores: Scores) -> Update:
        """An answer that brings scores and no weights: its model keeps nothing but the statistics."""
        return replace(self, model=self.model.under(np.zeros(scores.size, np.bool_)), scores=scores)

    @property
    def finite(self) -> bool:
        """Whether all that it brings is numbers."""
        return self.model.finite and (self.scores is None or bool(np.isfinite(self.scores).all()))

    @property
    def params(self) -> int:
        """Values that travel with it."""
        return self.model.nonzero + (0 if self.scores is None else self.scores.size)


Request: TypeAlias = Fit | Score
Client: TypeAlias = Generator[Request, Update, Update]


def until_diverged(client: Client) -> Client:
    """A client's half that ends with the first answer that is not finite, whatever the method would make of it.

    That answer is its update then, which the server leaves out by name; so is one for which the method finds no scores
    that are numbers. One client's fault does not stop the others.
    """
    request = next(client)
    while True:
        answer = yield request
        if not answer.finite:
            client.close()
            return answer
        try:
            request = client.send(answer)
        except StopIteration as done:
            update: Update = done.value
            return update
        except (ModelError, ArithmeticError) as error:
            return replace(answer, fault=f"its half of the round failed: {error}")


def played(client: Client, answer: Callable[[Request], Update]) -> Update:
    """A client's update, its requests answered one after the other."""
    client = until_diverged(client)
    request = next(client)
    try:
        while True:
            request = client.send(answer(request))
    except StopIteration as done:
        update: Update = done.value
        return update


@dataclass(frozen=True, kw_only=True)
class Method:
    """Fit at the clients, weighted mean at the server: FedAvg, and the base of every other method.

    A subclass is a frozen dataclass; its `option` fields are its config keys and flags. `rounds` is the run's.
    """

    first_round: ClassVar[int] = 1  # 0: a round before the first, in which the mask is found
    exact: ClassVar[bool] = True  # the schedule's sparsity is met to the parameter
    regrows: ClassVar[bool] = False  # pruned entries may return

    rounds: int = 1

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        check_options(cls)

    @property
    def schedule(self) -> Schedule:
        """Target sparsity by round. Building it checks the settings."""
        return ConstantSchedule(0.0)

    @classmethod
    def default_momentum(cls, usual: float) -> float:
        """Local momentum where the user names none; `usual` is what the paper uses for the data set."""
        return usual

    def settled(self, measure_times: Callable[[], str]) -> Method:
        """The method with figures in place of what depends on the machine, so that the run can be repeated."""
        return self

    def begin(self, model: SparseModel) -> SparseModel:
        """The model that the first round starts from, given the initialised one."""
        return model

    def cohort(self, round: int) -> float | None:
        """How many clients a round asks; None: as many as the run says, infinity: all."""
        return None

    def client(self, round: int, model: SparseModel) -> Client:
        """The client's half of one round."""
        return (yield Fit(model))

    def merge(self, round: int, model: SparseModel, updates: Iterable[Update], rng: np.random.Generator) -> SparseModel:
        """The server's half: fold the stream of updates into the next model."""
        return tally(updates).mean()


def tally(updates: Iterable[Update], into: Tally | None = None) -> Tally:
    """Sum the updates up, each with the weight of its samples."""
    sums = into or Tally()
    for update in updates:
        sums.add(update.model, update.samples)
    return sums


def tally_scored(updates: Iterable[Update]) -> tuple[Tally, Scores]:
    """Sum the updates up, and the weighted mean of their scores."""
    sums, scores = Tally(), MeanOf()
    for update in updates:
        sums.add(update.model, update.samples)
        if update.scores is not None:
            scores.add(update.scores, update.samples)
    return sums, scores.value


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
