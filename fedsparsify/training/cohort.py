"""A whole cohort: the answers of many clients to requests that train them.

Clients keep their own order of samples, their own dropout and their own statistics, so each gets what it would have
got alone, up to the rounding of the larger products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import nn

from ..methods import Request, Update
from .backends import Backend, Setup, choose
from .settings import Training
from .worker import Samples, Worker


class Cohort:
    """The clients of a round, trained by the first back end that fits the network."""

    def __init__(
        self, make: Callable[[], nn.Module], samples: Samples, training: Training, device: torch.device
    ) -> None:
        self.setup = Setup(make, samples, training, device)

    @cached_property
    def backend(self) -> Backend:
        """What trains them; the choice is made once."""
        return choose(self.setup)

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        return self.backend.fit(workers, requests)
