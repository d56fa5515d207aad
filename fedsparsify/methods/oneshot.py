"""OneShot and OneShot with fine-tuning (after Han et al., 2015): one magnitude purge, at the end or near it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..options import option
from ..schedule import OneShotSchedule, Schedule
from .purging import Purging


@dataclass(frozen=True, kw_only=True)
class OneShot(Purging):
    """Dense until the last round, then one purge at the server."""

    @property
    def schedule(self) -> Schedule:
        """One step at round T."""
        return OneShotSchedule(self.sparsity, self.rounds)


@dataclass(frozen=True, kw_only=True)
class OneShotFT(OneShot):
    """Dense until `tune` rounds before the end, one purge, then the kept weights are tuned."""

    tune: int = option(10, "rounds of tuning after the purge")

    @property
    def schedule(self) -> Schedule:
        """One step at the end of round T − tune."""
        if not 0 <= self.tune < self.rounds:
            raise ConfigError(
                f"method.tune must leave a round to train before the purge. "
                f"Received: tune {self.tune!r} of {self.rounds!r} rounds."
            )
        return OneShotSchedule(self.sparsity, self.rounds - self.tune)
