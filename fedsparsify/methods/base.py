"""What a method is: the client's and the server's half of an algorithm, without I/O or a training loop.

`client` is a generator. It yields requests (`Fit`, `Score`) and is sent the answers, so the same code serves one
worker, a whole cohort advanced in lock-step, and a client at the other end of a network. What either half remembers
from round to round goes in and comes out as a value (`state.py`): a method itself never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from ..average import MeanOf, PooledTally, Tally
from ..errors import ConfigError
from ..model import Floats, SparseModel
from ..options import check_options, complete_docstring, option
from ..schedule import ConstantSchedule, Schedule
from ..state import State
from .context import ClientContext, ServerContext
from .corrections import CONTROL, Correction, Received, corrected, remembered, server_step
from .requests import Client, Fit, Update
from .server_optimizers import ADAPTIVE, ServerOptimizer, check, step

Merged: TypeAlias = SparseModel | tuple[SparseModel, State]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of every method. As it is: clients fit, the server takes the weighted mean (FedAvg).

    A subclass is a frozen dataclass; its `option` fields are its config keys and flags. It overrides `client`, a
    generator that yields `Fit` and `Score` requests and returns an `Update`; or `merge`, which makes the next model
    of the updates; or both. Name it in a run as `module:Class`.

    It remembers nothing itself. `client` may take a third argument, `me` (`ClientContext`), with what the client has
    kept by `update.keep(…)`; `merge` may take a fifth, `server` (`ServerContext`), with the state that it returned
    beside its last model.

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
    plain_fits: ClassVar[bool] = True  # False: clients train otherwise than a loop of a user's own under Flower does
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

    @property
    def broadcasts(self) -> tuple[str, ...]:
        """Names of the server's state that are sent to clients with the model: one number per trainable entry each."""
        return ()

    @property
    def uploads(self) -> tuple[str, ...]:
        """Names of what clients send beside their models (`Update.sent`): one number per trainable entry each."""
        return ()

    @classmethod
    def default_momentum(cls, usual: float) -> float:
        """Local momentum if the user gives none.

        Args:
            usual: the paper's for the data set.

        Returns:
            The momentum of local SGD.
        """
        return usual

    def settled(self, measure_times: Callable[[], str]) -> Method:
        """The method with its machine-dependent settings replaced by measured values, so that a run can be repeated.

        Args:
            measure_times: measures the time of each layer on this machine; returns it as a setting holds it.

        Returns:
            The method itself, or a copy.
        """
        return self

    def check(self, model: SparseModel) -> None:
        """Refuse a network that the method cannot work with, before the first round.

        Args:
            model: the initialised one.

        Raises:
            ConfigError: if the method cannot work with it.
        """

    def begin(self, model: SparseModel) -> SparseModel:
        """Change the model before the first round.

        Args:
            model: the initialised one.

        Returns:
            The model that the first round starts from.
        """
        return model

    def cohort(self, round: int) -> float | None:
        """How many clients take part in a round.

        Args:
            round: the round, from `first_round` on.

        Returns:
            A number of clients; infinity: all; None: the run's setting.
        """
        return None

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """The client's half of one round: a generator that yields requests and is sent an `Update` for each.

        Args:
            round: the round, from `first_round` on.
            model: what the server sent.
            me: the client's state and samples; a subclass may leave this argument out.

        Returns:
            The update that goes to the server.
        """
        return (yield Fit(model))

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> Merged:
        """The server's half: fold the stream of updates into the next model.

        Args:
            round: the round, from `first_round` on.
            model: what the clients were sent.
            updates: the usable answers, one at a time; the stream can be read once.
            rng: the server's own randomness in this round.
            server: the server's state; a subclass may leave this argument out.

        Returns:
            The next model, or a pair of it and the state that the next `merge` is given.
        """
        return tally(updates).mean()


def tally(updates: Iterable[Update], into: Tally | None = None) -> Tally:
    """Sum the updates, each weighted by its samples.

    Args:
        updates: the answers of a round; read once.
        into: sums to add to; None: new ones.

    Returns:
        The sums; `.mean()` is the weighted mean.

    Example:
        >>> import numpy as np
        >>> from fedsparsify import SparseModel, Update
        >>> from fedsparsify.methods import tally
        >>> answers = [Update(SparseModel.of({"w": np.full(2, value)}), samples=10) for value in (1.0, 3.0)]
        >>> tally(answers).mean().weights
        array([2., 2.], dtype=float32)
    """
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
class Averaging(Method):
    """Base of the methods that average: with a server optimiser, and a correction of client drift, where asked.

    A subclass overrides `fit` (what a client trains) or `finish` (what follows the mean), and keeps both.

    Raises:
        ConfigError: if settings are out of range, or do not go together with each other or with the subclass.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedsparsify import RunConfig
        >>> from fedsparsify.methods import Averaging
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Halved(Averaging):
        ...     'Weights are halved after every round.'
        ...     def finish(self, round, mean, rng):
        ...         return mean.with_trainable(0.5 * mean.trainable_weights)
        >>> RunConfig(method=Halved(server_optimizer="adam")).method.server_optimizer
        'adam'
    """

    server_optimizer: ServerOptimizer = option(
        "sgd", "what the server does with the mean update: apply it (sgd), or feed an optimiser of its own with it"
    )
    server_lr: float | None = option(
        None, "rate η of the server's step", unset="1 for sgd and momentum, 0.1 for the others"
    )
    server_momentum: float = option(0.9, "momentum β of the server's optimiser")
    server_beta2: float = option(0.99, "decay β₂ of the squares, of adam and yogi")
    server_tau: float = option(0.001, "τ of the adaptive ones, added to the root of the squares")
    server_bias_correction: bool = option(False, "correct adam's rate for the first rounds, as Flower's FedAdam does")
    correction: Correction = option("none", "correction of client drift; scaffold sends as much again as the models")
    correction_strength: float = option(0.1, "strength α of feddyn")
    statistics: Literal["mean", "pooled"] = option(
        "mean", "running variances of batch norms: the clients' mean, or those of all their samples together"
    )

    averages: ClassVar[bool] = True
    corrects: ClassVar[bool] = True  # `client` fits with the correction's terms

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "client" in vars(cls) and "corrects" not in vars(cls):
            cls.corrects = False  # a client of its own has to say what it does

    def __post_init__(self) -> None:
        asked = self.server_steps
        if not self.averages and (asked or self.correction != "none"):
            raise ConfigError(
                f"{type(self).__name__} has a merge of its own, which knows no server optimiser and no correction. "
                f"Received: server_optimizer {self.server_optimizer!r}, correction {self.correction!r}. "
                f"If it passes `server` on to super().merge, say so: averages = True."
            )
        if not self.corrects and self.correction != "none":
            raise ConfigError(
                f"{type(self).__name__} has a client of its own, which knows no correction. "
                f"Received: {self.correction!r}. If it passes `me` on to super().client, say so: corrects = True."
            )
        check(
            self.server_optimizer,
            self.server_lr,
            self.server_momentum,
            self.server_beta2,
            self.server_tau,
            self.server_bias_correction,
        )
        if not 0 < self.correction_strength < float("inf"):
            raise ConfigError(f"method.correction_strength must be positive. Received: {self.correction_strength!r}.")
        if self.correction == "feddyn" and asked:
            raise ConfigError(
                f"method.correction 'feddyn' gives the server's model itself, and cannot be combined with a server "
                f"optimiser or a server_lr. Received: server_optimizer {self.server_optimizer!r}, "
                f"server_lr {self.server_lr!r}."
            )

    @property
    def broadcasts(self) -> tuple[str, ...]:
        """SCAFFOLD's control variate."""
        return (CONTROL,) if self.correction == "scaffold" else ()

    @property
    def uploads(self) -> tuple[str, ...]:
        """How much a client's control variate changed."""
        return (CONTROL,) if self.correction == "scaffold" else ()

    @property
    def server_steps(self) -> bool:
        """Whether the server does anything else with the mean than to take it."""
        return self.server_optimizer != "sgd" or self.server_lr not in (None, 1)

    def fit(self, model: SparseModel) -> Fit:
        """What a client is asked to train.

        Args:
            model: what the server sent.

        Returns:
            The request.
        """
        return Fit(model)

    def client(self, round: int, model: SparseModel, me: ClientContext | None = None) -> Client:
        """Fit, corrected where asked."""
        if self.correction == "none":
            return (yield self.fit(model))
        me = given(me, "client", "me")
        update = yield corrected(self.correction, self.fit(model), me, self.correction_strength)
        return remembered(self.correction, model, update, me, self.correction_strength)

    def merge(
        self,
        round: int,
        model: SparseModel,
        updates: Iterable[Update],
        rng: np.random.Generator,
        server: ServerContext | None = None,
    ) -> Merged:
        """Weighted mean; then the correction, the server's optimiser and what `finish` does."""
        state: State = {}
        sums = PooledTally() if self.statistics == "pooled" else Tally()
        if self.correction == "none":
            mean = tally(updates, sums).mean()
        else:
            received = Received(updates)
            mean = tally(received, sums).mean()
            server = given(server, "merge", "server")
            mean, state = server_step(self.correction, model, mean, received, server, self.correction_strength)
        if self.server_steps:
            mean, more = step(
                self.server_optimizer,
                model,
                mean,
                given(server, "merge", "server").state,
                self.server_lr or (0.1 if self.server_optimizer in ADAPTIVE else 1.0),
                self.server_momentum,
                self.server_beta2,
                self.server_tau,
                round if self.server_bias_correction else None,
            )
            state = {**state, **more}
        after = self.finish(round, mean, rng)
        return (after, state) if state else after

    def finish(self, round: int, mean: SparseModel, rng: np.random.Generator) -> SparseModel:
        """What follows the mean and the server's optimiser.

        Args:
            round: the round.
            mean: the averaged model.
            rng: the server's own randomness in this round.

        Returns:
            The next model.
        """
        return mean


def given(context: Any, half: str, name: str) -> Any:
    """The context, or an error if a subclass did not pass it on."""
    if context is None:
        raise ConfigError(
            f"a server optimiser or a correction needs state: a {half} that calls super().{half} must take "
            f"{name!r} as its last argument, and pass it on."
        )
    return context
