"""How a run merges, as settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
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

    epsilon: float = option(
        0.0, "differential privacy: the most ε that the run may cost; finds the noise for its rounds; 0: none"
    )
    delta: float = option(1e-5, "differential privacy: the δ at which ε is stated, below 1 / clients")
    dp_noise: float = option(0.0, "differential privacy: noise on the sum of updates, in clipping norms; 0: by epsilon")
    dp_clip: float = option(1.0, "differential privacy: norm to which each client's update is shortened")

    @property
    def private(self) -> bool:
        """Whether the run has differential privacy."""
        return self.epsilon > 0 or self.dp_noise > 0

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

    def check_privacy(
        self, method: Method, name: str, clients: int, others: Mapping[str, tuple[object, object]]
    ) -> None:
        """Refuse whatever would void differential privacy; `others` are settings and their usual values."""
        for setting in ("epsilon", "dp_noise"):
            if not 0 <= getattr(self, setting) < float("inf"):
                raise ConfigError(f"{setting} must be positive, or 0 for none. Received: {getattr(self, setting)!r}.")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie in (0, 1). Received: {self.delta!r}.")
        if not 0 < self.dp_clip < float("inf"):
            raise ConfigError(f"dp_clip must be positive. Received: {self.dp_clip!r}.")
        if not self.private:
            return
        if self.delta * clients >= 1:
            raise ConfigError(
                f"delta must be below 1 / clients = {1 / clients:g}: with more, publishing one client's samples would "
                f"pass. Received: {self.delta!r}."
            )
        voids = {
            "clients send masks or merge in their own way": not method.averages or method.regrows,
            "clients are asked for scores": method.first_round < 1,
            f"clients send {', '.join(method.uploads)} beside their models": bool(method.uploads),
        }
        if why := [reason for reason, true in voids.items() if true]:
            raise ConfigError(
                f"differential privacy covers clipped models under one mask, and nothing else. "
                f"Received: method {name!r}, in which {why[0]}. Use fedavg, fedprox, fedsparsify-global or random."
            )
        if self.merge != "mean":
            raise ConfigError(
                f"differential privacy needs merge 'mean': it knows the noise for a sum, and one client may move the "
                f"result of another rule further. Received: {self.merge!r}."
            )
        reasons = {
            "diagnose": "it looks at training samples without noise",
            "min_clients": "a run that stops would tell how many took part",
            "evaluate": "what clients measure is published without noise",
            "max_samples": "clients have equal weights",
        }
        for setting, (value, usual) in others.items():
            if value != usual:
                raise ConfigError(
                    f"differential privacy needs {setting} {usual!r}: {reasons[setting]}. Received: {value!r}."
                )
