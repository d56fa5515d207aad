"""Round → target sparsity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .errors import ConfigError

Schedule: TypeAlias = Callable[[int], float]


def check_fraction(name: str, value: float) -> None:
    """Refuse a value outside [0, 1); for one that looks like a percentage, say the fraction."""
    if not 0 <= value < 1:
        hint = f" Did you mean {value / 100:.4g}?" if 1 < value < 100 else ""
        raise ConfigError(f"{name} must lie in [0, 1). Received: {value!r}.{hint}")


def check_at_least(name: str, value: float, least: float) -> None:
    """Refuse a value below `least`."""
    if not value >= least:
        raise ConfigError(f"{name} must be at least {least}. Received: {value!r}.")


@dataclass(frozen=True)
class GradualSchedule:
    """Target sparsity by round (Eq. 1 of the paper): slow at the end, where every weight counts more.

    The paper leaves two cases open. Before the first purge (t < t_0, or t < F) the formula falls below S_0: the
    target stays at S_0. If F does not divide the round at which the schedule ends, that round purges all the same, so
    that S_T is always reached.

    Args:
        final: sparsity S_T at the end, a fraction in [0, 1).
        rounds: the last round T.
        initial: sparsity S_0 at `start`.
        start: the round t_0 at which pruning starts.
        every: prune every F rounds.
        exponent: n; higher prunes earlier.
        end: where S_T is reached; the rounds after it only tune. Up to 1: a fraction of the rounds, rounded to the
            nearest round; from 2 on: a round. Eq. 1 then has this round in place of T.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from fedsparsify import GradualSchedule
        >>> schedule = GradualSchedule(final=0.9, rounds=10)
        >>> [round(schedule(t), 3) for t in (1, 4, 7, 10)]
        [0.0, 0.633, 0.867, 0.9]
        >>> schedule = GradualSchedule(final=0.9, rounds=10, end=0.7)
        >>> [round(schedule(t), 3) for t in (1, 4, 7, 10)]
        [0.0, 0.787, 0.9, 0.9]
    """

    final: float
    rounds: int
    initial: float = 0.0
    start: int = 1
    every: int = 1
    exponent: float = 3
    end: float = 1.0

    def __post_init__(self) -> None:
        check_fraction("final sparsity (S_T)", self.final)
        check_fraction("initial sparsity (S_0)", self.initial)
        check_at_least("rounds (T)", self.rounds, 1)
        check_at_least("start (t_0)", self.start, 1)
        check_at_least("every (F)", self.every, 1)
        if self.initial > self.final:
            raise ConfigError(
                f"initial sparsity (S_0) must not exceed the final one (S_T): pruned weights never return. "
                f"Received: initial {self.initial!r}, final {self.final!r}."
            )
        if self.start > self.rounds:
            raise ConfigError(
                f"start (t_0) must not lie after the last round (T). "
                f"Received: start {self.start!r}, rounds {self.rounds!r}."
            )
        if not (0 < self.end <= 1 or (2 <= self.end <= self.rounds and self.end == int(self.end))):
            raise ConfigError(
                f"end must be a fraction of the rounds, in (0, 1], or a round from 2 to the last one. "
                f"Received: end {self.end:g}, rounds {self.rounds!r}."
            )
        if self.start > self.last_purge:
            raise ConfigError(
                f"start (t_0) must not lie after the end of the schedule. "
                f"Received: start {self.start!r}, end {self.end:g} (round {self.last_purge} of {self.rounds!r})."
            )
        if not self.exponent > 0:
            raise ConfigError(f"exponent (n) must be positive. Received: {self.exponent!r}.")

    @property
    def last_purge(self) -> int:
        """The round at which S_T is reached."""
        return int(self.end) if self.end > 1 else max(1, int(self.end * self.rounds + 0.5))

    def __call__(self, t: int) -> float:
        """Target sparsity s_t.

        Args:
            t: the round, from 1 on.

        Returns:
            A fraction in [0, 1).
        """
        if t >= self.last_purge:
            return self.final
        purge = self.every * (t // self.every)
        if purge <= self.start:
            return self.initial
        left = 1 - (purge - self.start) / (self.last_purge - self.start)
        return float(self.final + (self.initial - self.final) * left**self.exponent)


@dataclass(frozen=True)
class OneShotSchedule:
    """Dense before round `at`, sparsity `final` from then on."""

    final: float
    at: int

    def __post_init__(self) -> None:
        check_fraction("sparsity", self.final)
        check_at_least("the round of the one-shot purge", self.at, 1)

    def __call__(self, t: int) -> float:
        """Target sparsity s_t."""
        return self.final if t >= self.at else 0.0


@dataclass(frozen=True)
class ConstantSchedule:
    """The same sparsity in every round; 0 is dense training."""

    final: float = 0.0

    def __post_init__(self) -> None:
        check_fraction("sparsity", self.final)

    def __call__(self, t: int) -> float:
        """Target sparsity s_t."""
        return self.final


@dataclass(frozen=True)
class CommunicationCost:
    """Values that a whole run exchanges, and the values of its final model."""

    paper: int
    honest: int
    final_params: int


def communication_cost(total: int, trainable: int, schedule: Schedule, rounds: int, clients: int) -> CommunicationCost:
    """Values that clients and server exchange in a whole run, without masks and headers.

    Args:
        total: values of the dense model.
        trainable: how many of them may be pruned.
        schedule: target sparsity by round.
        rounds: the last round.
        clients: how many clients take part in a round.

    Returns:
        `paper` counts a round's upload at the size after that round's purge, as the paper's tables do. `honest`
        counts it at the size that the client trained and sent, one purge earlier. `final_params` are the values left.

    Example:
        >>> from fedsparsify import GradualSchedule, communication_cost
        >>> communication_cost(1000, 900, GradualSchedule(final=0.9, rounds=10), rounds=10, clients=5)
        CommunicationCost(paper=45580, honest=49630, final_params=190)
    """
    sizes = [total] + [total - int(schedule(t) * trainable) for t in range(1, rounds + 1)]
    down, after = sum(sizes[:-1]), sum(sizes[1:])
    return CommunicationCost(clients * (down + after), clients * 2 * down, sizes[-1])
