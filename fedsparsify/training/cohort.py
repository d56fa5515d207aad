"""A cohort: many clients that train at once, by one back end.

In: workers and their requests. Out: one update per worker. Each client has its own order of samples, its own dropout
and its own statistics, so its update is the one that it would get alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import nn

from ..methods import Fit, Request, Update
from .backends import Backend, Setup, choose
from .backends.stacked import Gpu
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
        """The back end; chosen once."""
        return choose(self.setup)

    @cached_property
    def autograd(self) -> Backend:
        """The back end for requests that only autograd on the module itself can answer; chosen once."""
        return choose(self.setup, autograd=True)

    def _stacks(self, request: Request) -> bool:
        """Whether the back end takes an unusual step, as only the GPU's kernels may."""
        return (
            self.setup.device.type == "cuda"
            and isinstance(self.backend, Gpu)
            and isinstance(request, Fit)
            and self.backend.takes(request)
        )

    def fit(self, workers: Sequence[Worker], requests: Sequence[Request]) -> list[Update]:
        """Every worker's answer to its request, in their order."""
        groups: dict[bool, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(request.by_autograd and not self._stacks(request), []).append(i)
        answers: dict[int, Update] = {}
        for by_autograd, members in groups.items():
            backend = self.autograd if by_autograd else self.backend
            updates = backend.fit([workers[i] for i in members], [requests[i] for i in members])
            answers |= dict(zip(members, updates, strict=True))
        return [answers[i] for i in range(len(workers))]
