"""How a run merges, as settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..errors import ConfigError
from ..methods import Method
from ..options import option

Rule: TypeAlias = Literal["mean", "median", "trimmed", "geometric-median", "multi-krum"]


@dataclass(frozen=True, kw_only=True)
class MergeSettings:
    """Which rule merges the updates, and what no client may exceed."""

    merge: Rule = option("mean", "rule that merges the updates; all but the mean weigh clients equally")
    hostile: float = option(0.3, "share of a round's clients that trimmed and multi-krum assume to be hostile, < 0.5")
    max_samples: int = option(0, "samples that a client counts for at most, whatever it claims; 0: no limit")
    norm_bound: float = option(4.0, "an update longer than so many recent medians is scaled down to that; 0: no limit")

    def check_merging(self, method: Method, name: str) -> None:
        """Refuse settings that are out of range, or that do not fit the method."""
        if not 0 <= self.hostile < 0.5:
            raise ConfigError(f"hostile must lie in [0, 0.5), a share of the clients. Received: {self.hostile!r}.")
        if self.max_samples < 0:
            raise ConfigError(f"max_samples must be at least 1, or 0 for no limit. Received: {self.max_samples!r}.")
        if not (self.norm_bound == 0 or 1 <= self.norm_bound < float("inf")):
            raise ConfigError(f"norm_bound must be at least 1, or 0 for no limit. Received: {self.norm_bound!r}.")
        if self.merge != "mean" and not method.averages:
            raise ConfigError(
                f"merge {self.merge!r} needs a method whose server takes the mean of models under one mask. "
                f"Received: method {name!r}, which merges in its own way. Use merge 'mean', or another method."
            )
