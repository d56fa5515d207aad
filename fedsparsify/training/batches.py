"""Which samples each model sees in which step: the steps of an epoch, and the samples of a step.

In: how many samples each client has. Out: steps; per step, the inputs and labels of every model that takes part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..keyed import pad_crop_flip
from .inputs import Samples


@dataclass(frozen=True)
class Step:
    """One batch for consecutive models: `models` of them from `start`, `size` samples each from `offset`."""

    number: int  # which of its client's batches it is
    start: int
    models: int
    offset: int
    size: int

    @property
    def span(self) -> slice:
        """The models that take part."""
        return slice(self.start, self.start + self.models)


@dataclass(frozen=True)
class StepInputs:
    """What a stacked network is given for one training step."""

    rows: torch.Tensor  # (models, batch), samples of each model
    keys: torch.Tensor  # (models,), random keys of this step
    start: int  # the first of the models in the stack
    gradient: torch.Tensor | None  # buffer for the gradients; None: plain SGD, applied as they are computed
    rates: torch.Tensor  # (models,), learning rates of plain SGD: on a CPU all are the same
    decay: float  # weight decay of plain SGD
    losses: torch.Tensor  # of all models of the stack; the losses of the samples are added to them
    first: bool = False  # whether it is the models' first step of a request
    fixed_norms: bool = False  # whether batch norms take the running statistics

    @property
    def span(self) -> slice:
        """The models that take part."""
        return slice(self.start, self.start + len(self.rows))


def steps(samples: Sequence[int], batch: int) -> Iterator[Step]:
    """The steps of one epoch, from the number of samples of each client, largest first. Batches come in order."""
    for number in range(samples[0] // batch):
        yield Step(number, 0, sum(count // batch > number for count in samples), number * batch, batch)
    start = 0
    while start < len(samples):
        count = samples[start]
        same = samples.count(count)
        if rest := count % batch:
            yield Step(count // batch, start, same, count - rest, rest)
        start += same


class Batches:
    """The samples of a step, augmented where the run says so."""

    def __init__(self, samples: Samples, augment: bool) -> None:
        self.samples, self.augment = samples, augment

    def __call__(self, rows: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of the samples `rows`, (models, batch)."""
        picked = rows.reshape(-1)
        x = self.samples.x.index_select(0, picked).view(*rows.shape, *self.samples.x.shape[1:])
        if self.augment:
            x = torch.stack([pad_crop_flip(mine, key) for mine, key in zip(x, keys, strict=True)])
        return x, self.samples.y.index_select(0, picked).view(*rows.shape, *self.samples.y.shape[1:])

    def channels_last(self) -> torch.Tensor:
        """All inputs with channels last, the layout of the GPU kernels."""
        x: torch.Tensor = self.samples.x
        return x.movedim(1, -1).contiguous() if x.ndim == 4 else x.contiguous()
