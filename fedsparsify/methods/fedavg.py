"""FedAvg (McMahan et al., 2017), and FedAvg with local momentum, MFL (Liu et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Averaging


@dataclass(frozen=True, kw_only=True)
class FedAvg(Averaging):
    """Dense: clients fit with plain SGD, the server takes the weighted mean."""

    @classmethod
    def default_momentum(cls, usual: float) -> float:
        """Plain SGD, unless the user asks for momentum."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class FedAvgMFL(Averaging):
    """Dense: clients fit with momentum SGD, the server takes the weighted mean."""

    @classmethod
    def default_momentum(cls, usual: float) -> float:
        """The data set's momentum; 0.9 where the paper trains it without."""
        return usual or 0.9
