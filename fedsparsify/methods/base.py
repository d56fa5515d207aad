"""What a method is: the client's and the server's half of an algorithm, without state, I/O or a training loop.

`client` is a generator. It yields requests (`Fit`, `Score`) and is sent the answers, so the same code serves one
worker, a whole cohort advanced in lock-step, and a client at the other end of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from ..arrays import BoolArray, FloatArray
from ..average import MeanOf, Tally
from ..errors import ModelError
from ..model import Floats, SparseModel
from ..options import check_options, complete_docstring, option
from ..schedule import ConstantSchedule, GradualSchedule, Schedule
from ..scores import keep_top, magnitude
from ..text import plain


@dataclass(frozen=True)
class Fit:
    """A request to a client: train `model` on your samples, under its mask. The answer is an `Update`.

    Args:
        model: where training starts; its pruned entries stay zero.
        epochs: local epochs; None: the run's setting.
        prox: μ of a proximal term towards `model`, 0 or more.
        linear: a flat array of one number per trainable entry, which is added to the gradient of every step where
            the model is not pruned: the gradient of a linear term in the client's loss. None: there is none.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import Fit, SparseModel
        >>> Fit(SparseModel.of({"w": np.ones(4)}), epochs=2)
        Fit(model=SparseModel(1 tensor, 4 of 4 values, sparsity 0.0000), epochs=2, prox=0.0)
    """

    model: SparseModel
    epochs: int | None = None
    prox: float = 0.0
    linear: FloatArray | None = field(default=None, repr=False, compare=False)  # (trainable,)

    trains: ClassVar[bool] = True


@dataclass(frozen=True)
class Score:
    """A request to a client: score every trainable entry, pruned ones too. The answer is an `Update` with `scores`.

    Args:
        model: the model to score.
        by: `gradient` is g of the mean loss on one batch; `hessian-gradient` is H g on such a batch. Both leave the
            model as it is. `squares` trains as `Fit` does and sums g² over its steps; the answer's model is the
            trained one.
        per_class: the batch has up to this many samples of each class that the client holds.
        temperature: the batch's logits are divided by it.
        epochs: of `squares`; None: the run's setting.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import Score, SparseModel
        >>> Score(SparseModel.of({"w": np.ones(4)}), by="gradient").trains
        False
    """

    model: SparseModel
    by: Literal["gradient", "hessian-gradient", "squares"]
    per_class: int = 10
    temperature: float = 1.0
    epochs: int | None = None

    prox: ClassVar[float] = 0.0
    linear: ClassVar[None] = None

    @property
    def trains(self) -> bool:
        """Whether it is answered by training, as a `Fit` is."""
        return self.by == "squares"


@dataclass(frozen=True)
class Update:
    """A client's answer to a request, and its result of a round.

    Args:
        model: the trained model, or the scored one.
        samples: how many samples it was trained on: its weight in an average.
        loss: mean training loss.
        client: the client's number; filled in by the simulator or the server, as the bytes are.
        scores: one number per trainable entry, if the request was a `Score`; a numpy array.
        download_bytes: bytes sent to the client; None: not counted.
        upload_bytes: bytes sent by the client; None: not counted.
        fault: why the server must leave the update out; empty: it can be used.
        rates: sum of the learning rates of the steps that were taken for this answer; known to the client alone.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, Update
        >>> update = Update(SparseModel.of({"w": np.ones(4)}), samples=20, loss=0.5)
        >>> update
        Update(SparseModel(1 tensor, 4 of 4 values, sparsity 0.0000), samples=20, loss=0.5)
        >>> update.under(np.array([True, False, True, False])).params
        2
    """

    model: SparseModel
    samples: int
    loss: float = float("nan")
    client: int = -1
    scores: Floats | None = None  # (trainable,)
    download_bytes: int | None = None
    upload_bytes: int | None = None
    fault: str = ""
    rates: float = float("nan")

    def __repr__(self) -> str:
        more = f", {self.scores.size:,} scores" if self.scores is not None else ""
        more += f", client={self.client}" if self.client >= 0 else ""
        more += f", fault={plain(repr(self.fault))}" if self.fault else ""
        return f"Update({self.model!r}, samples={self.samples}, loss={self.loss:.4g}{more})"

    def under(self, mask: BoolArray) -> Update:
        """The same update with its model pruned to `mask`."""
        return replace(self, model=self.model.under(mask))

    def only_scores(self, scores: Floats) -> Update:
        """The same answer with scores and without weights: its model keeps only the statistics."""
        return replace(self, model=self.model.under(np.zeros(scores.size, np.bool_)), scores=scores)

    @property
    def finite(self) -> bool:
        """Whether all its weights and scores are finite."""
        return self.model.finite and (self.scores is None or bool(np.isfinite(self.scores).all()))

    @property
    def params(self) -> int:
        """Number of values that are sent with it."""
        return self.model.nonzero + (0 if self.scores is None else self.scores.size)


Request: TypeAlias = Fit | Score
Client: TypeAlias = Generator[Request, Update, Update]


def until_diverged(client: Client) -> Client:
    """A client's half that ends with the first answer that is not finite.

    That answer is the client's update, and the server leaves it out by name. The same holds for an answer for which
    the method raises a ModelError or an ArithmeticError. One client's fault does not stop the others.
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


def run_client(client: Client, answer: Callable[[Request], Update]) -> Update:
    """Answer the requests of a client's half, one after the other; returns the client's update."""
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
    """Base of every method. As it is: clients fit, the server takes the weighted mean (FedAvg).

    A subclass is a frozen dataclass; its `option` fields are its config keys and flags. It overrides `client`, a
    generator that yields `Fit` and `Score` requests and returns an `Update`; or `merge`, which makes the next model
    of the updates; or both. It keeps no state. Name it in a run as `module:Class`.

    Args:
        rounds: the last round of the run.

    Raises:
        ConfigError: if an option cannot be written in a config file.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedsparsify import Fit, Method, RunConfig, option
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Warm(Method):
        ...     'FedProx in the first rounds, FedAvg afterwards.'
        ...     mu: float = option(0.01, "strength of the proximal term")
        ...     warm: int = option(5, "rounds with that term")
        ...     def client(self, round, model):
        ...         return (yield Fit(model, prox=self.mu if round <= self.warm else 0.0))
        >>> RunConfig(method=Warm(warm=2)).method.warm
        2
    """

    first_round: ClassVar[int] = 1  # 0: there is a round before the first, which finds the mask
    exact: ClassVar[bool] = True  # the schedule's sparsity is met to the parameter
    regrows: ClassVar[bool] = False  # pruned entries may return
    averages: ClassVar[bool] = True  # from round 1 on, `merge` starts with the mean of models under the round's mask

    rounds: int = 1

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "merge" in vars(cls) and "averages" not in vars(cls):
            cls.averages = False  # a merge of its own has to say what it does
        check_options(cls)
        complete_docstring(cls)

    @property
    def schedule(self) -> Schedule:
        """Target sparsity by round. Building it checks the settings."""
        return ConstantSchedule(0.0)

    @classmethod
    def default_momentum(cls, usual: float) -> float:
        """Local momentum if the user gives none; `usual` is the paper's for the data set."""
        return usual

    def settled(self, measure_times: Callable[[], str]) -> Method:
        """The method with its machine-dependent settings replaced by measured values, so that a run can be repeated."""
        return self

    def begin(self, model: SparseModel) -> SparseModel:
        """The model that the first round starts from, given the initialised one."""
        return model

    def cohort(self, round: int) -> float | None:
        """How many clients take part in a round; None: the run's setting, infinity: all."""
        return None

    def client(self, round: int, model: SparseModel) -> Client:
        """The client's half of one round."""
        return (yield Fit(model))

    def merge(self, round: int, model: SparseModel, updates: Iterable[Update], rng: np.random.Generator) -> SparseModel:
        """The server's half: fold the stream of updates into the next model."""
        return tally(updates).mean()


def tally(updates: Iterable[Update], into: Tally | None = None) -> Tally:
    """Sum the updates, each weighted by its samples."""
    sums = into or Tally()
    for update in updates:
        sums.add(update.model, update.samples)
    return sums


def tally_scored(updates: Iterable[Update]) -> tuple[Tally, Floats]:
    """Sum the updates, and take the weighted mean of their scores."""
    sums, scores = Tally(), MeanOf()
    for update in updates:
        sums.add(update.model, update.samples)
        if update.scores is not None:
            scores.add(update.scores, update.samples)
    return sums, scores.value


@dataclass(frozen=True, kw_only=True)
class Purging(Method):
    """Base of the methods whose server prunes: weighted mean, then keep the highest scores."""

    averages: ClassVar[bool] = True

    sparsity: float = option(0.9, "final sparsity S_T, a fraction in [0, 1)")

    def score(self, model: SparseModel, rng: np.random.Generator) -> FloatArray:
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
