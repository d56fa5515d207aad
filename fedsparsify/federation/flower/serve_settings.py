"""The settings of `serve` that are not settings of a run: how long a server waits, and how often it retries."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ...errors import ConfigError
from ...options import option


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How long a server waits for clients. It changes who takes part in a round, not what a round computes."""

    deadline: float = option(600.0, "seconds that a round waits for answers")
    wait: float = option(600.0, "seconds to wait for clients: for all at the start, later for min_clients")
    retries: int = option(2, "how often a round with too few answers is repeated before the run stops")

    def __post_init__(self) -> None:
        if not (isfinite(self.deadline) and self.deadline > 0):
            raise ConfigError(f"deadline must be a number of seconds above 0. Received: {self.deadline:g}.")
        if not (isfinite(self.wait) and self.wait >= 0):
            raise ConfigError(f"wait must be a number of seconds, 0 or more. Received: {self.wait:g}.")
        if self.retries < 0:
            raise ConfigError(f"retries must be 0 or more. Received: {self.retries}.")
