"""Between the clients' answers and a method's merge: bounds, robust rules and differential privacy, at run level.

In: the stream of a round's updates. Out: updates that a method's own merge takes the mean of, and what the ledger says.
"""

from __future__ import annotations

from .aggregator import Aggregator, RoundAggregator
from .privacy import PrivateRound
from .settings import MergeSettings

__all__ = ["Aggregator", "MergeSettings", "PrivateRound", "RoundAggregator"]
