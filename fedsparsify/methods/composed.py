"""FedAvg with a server optimiser or a correction, under the names by which they are known.

`fedavgm` (Hsu et al., 2019), `fedadam`, `fedyogi`, `fedadagrad` (Reddi et al., 2021), `feddyn` (Acar et al., 2021) and
`scaffold` (Karimireddy et al., 2020) are dense. The same settings compose with every method that averages.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import option
from .corrections import Correction
from .fedavg import FedAvg
from .server_optimizers import ServerOptimizer

OPTIMIZER = "what the server does with the mean update"
CORRECTION = "correction of client drift"


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """Dense: the server feeds the mean update to momentum."""

    server_optimizer: ServerOptimizer = option("momentum", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedAvg):
    """Dense: the server feeds the mean update to Adam."""

    server_optimizer: ServerOptimizer = option("adam", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAvg):
    """Dense: the server feeds the mean update to Yogi."""

    server_optimizer: ServerOptimizer = option("yogi", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(FedAvg):
    """Dense: the server feeds the mean update to Adagrad."""

    server_optimizer: ServerOptimizer = option("adagrad", OPTIMIZER)


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """Dense: clients and server remember gradients, so that clients agree on one minimum; no extra bytes."""

    correction: Correction = option("feddyn", CORRECTION)


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Dense: control variates correct every local step; they double what is sent."""

    correction: Correction = option("scaffold", CORRECTION)
