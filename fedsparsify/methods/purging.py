"""Bases of the methods that prune by a score: what is chosen, by which schedule, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..errors import ConfigError
from ..model import SparseModel
from ..options import option
from ..purging import check_reachable, least_kept, score_function, scored
from ..schedule import GradualSchedule, Schedule, check_fraction
from ..scores import Least, keep_top
from .base import Averaging, Method


@dataclass(frozen=True, kw_only=True)
class Selecting(Method):
    """Base of the methods that keep the highest scores, with their options; a subclass says who prunes, and when.

    Raises:
        ConfigError: if settings are out of range, a score is not known, or the subclass has scores of its own.

    Example:
        >>> from fedsparsify.methods import Gradual, Purging, Selecting
        >>> issubclass(Gradual, Purging) and issubclass(Purging, Selecting)
        True
    """

    sparsity: float = option(0.9, "final sparsity S_T, a fraction in [0, 1)")
    score: str = option(
        "magnitude", "what decides which entries stay: magnitude, lamp, uniform, erk, random or module:function"
    )
    exclude: tuple[str, ...] = option(
        (), "tensors that are never pruned: a name or pattern of tensors or modules, or last, norms or biases"
    )
    min_density: float = option(0.0, "share of its entries that every tensor keeps, so that no layer dies")

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if callable(own := vars(cls).get("score")):
            cls.scores = own  # type: ignore[method-assign]  # methods written before there was the option

    def __post_init__(self) -> None:
        check_fraction("method.min_density", self.min_density)
        score_function(self.score)
        usual = type(self).__dataclass_fields__["score"].default
        if type(self).scores is not Selecting.scores and self.score != usual:
            raise ConfigError(
                f"{type(self).__qualname__} scores by a function of its own. Received: method.score {self.score!r}."
            )

    def check(self, model: SparseModel) -> None:
        """Refuse what cannot be reached or scored."""
        check_reachable(model.layout, self.schedule(self.rounds), self.exclude, self.min_density)
        if ":" in self.score:
            self.scores(model, np.random.default_rng(0))

    def least(self, model: SparseModel) -> Least:
        """The fewest entries that tensors keep.

        Args:
            model: the model to prune.

        Returns:
            As `keep_top` takes it: pairs of a slice and a count.
        """
        return least_kept(model.layout, self.exclude, self.min_density)

    def scores(self, model: SparseModel, rng: np.random.Generator) -> FloatArray:
        """Score of each trainable weight. Override it for a score that needs the method's settings.

        Args:
            model: the model to prune.
            rng: randomness of the round.

        Returns:
            A flat array, higher = keep.
        """
        return scored(self.score, model, rng)

    def purged(self, round: int, model: SparseModel, rng: np.random.Generator) -> SparseModel:
        """The model after the round's purge, with the options of this method.

        Args:
            round: the round; its target sparsity is `schedule(round)`.
            model: the model to prune.
            rng: randomness of the round.

        Returns:
            The model with exactly the target's entries, or as it is if it is that sparse already.
        """
        target = self.schedule(round)
        if model.pruned >= int(target * model.layout.trainable):
            return model
        return model.under(keep_top(self.scores(model, rng), target, among=model.mask, least=self.least(model)))


@dataclass(frozen=True, kw_only=True)
class Scheduled(Selecting):
    """Base of the methods with the sparsity of Eq. 1, pruned at the server or at the clients.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedsparsify.methods import Scheduled
        >>> @dataclass(frozen=True, kw_only=True)
        ... class First(Scheduled):
        ...     'The model of one client, pruned.'
        ...     def merge(self, round, model, updates, rng):
        ...         return self.purged(round, next(iter(updates)).model, rng)
        >>> First(rounds=10, sparsity=0.8, every=2).schedule(10)
        0.8
    """

    initial: float = option(0.0, "initial sparsity S_0")
    start: int = option(1, "round t_0 at which pruning starts")
    every: int = option(1, "prune every F rounds")
    exponent: float = option(3.0, "exponent n: higher prunes earlier")
    end: float = option(
        1.0, "where S_T is reached, so that later rounds only tune: up to 1 a fraction of the rounds, else a round"
    )

    @property
    def schedule(self) -> Schedule:
        """Eq. 1 with this method's settings."""
        return GradualSchedule(
            self.sparsity, self.rounds, self.initial, self.start, self.every, self.exponent, self.end
        )


@dataclass(frozen=True, kw_only=True)
class Purging(Averaging, Selecting):
    """Base of the methods whose server prunes: weighted mean, then keep the highest scores.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedsparsify import RunConfig
        >>> from fedsparsify.methods import Purging
        >>> from fedsparsify.schedule import ConstantSchedule
        >>> @dataclass(frozen=True, kw_only=True)
        ... class AtOnce(Purging):
        ...     'The final sparsity from the first round on.'
        ...     @property
        ...     def schedule(self):
        ...         return ConstantSchedule(self.sparsity)
        >>> RunConfig(method=AtOnce(sparsity=0.5)).method.schedule(1)
        0.5
    """

    def __post_init__(self) -> None:
        Selecting.__post_init__(self)
        Averaging.__post_init__(self)

    def finish(self, round: int, mean: SparseModel, rng: np.random.Generator) -> SparseModel:
        """Purge to the round's sparsity."""
        return self.purged(round, mean, rng)


@dataclass(frozen=True, kw_only=True)
class Gradual(Scheduled, Purging):
    """Base of the methods whose server prunes along Eq. 1.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedsparsify.methods import Gradual
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Smallest(Gradual):
        ...     'Keep the smallest weights.'
        ...     def scores(self, model, rng):
        ...         return -abs(model.trainable_weights)
        >>> Smallest(rounds=10, sparsity=0.8, end=0.5).schedule(5)
        0.8
    """
