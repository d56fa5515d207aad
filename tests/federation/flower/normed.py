"""A small network with batch norm, for runs of real processes: its model has statistics besides its weights."""

from __future__ import annotations

from math import prod

from torch import nn


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 64, normed."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, classes)
    )
