"""What claims are checked with: the paper's environments by name, and one comparison's outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .environments import Environment

GLOBAL = "fedsparsify-global"
DATA = {"fashion-mnist": "FashionMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


@dataclass(frozen=True)
class Check:
    """One comparison: whether it holds, and its numbers."""

    holds: bool
    figures: str


class Runs:
    """The paper's environments by name."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        self.all = [one for one in environments if one.table.get("data") in DATA]

    def where(self, data: str | None = None, clients: int | None = None, iid: bool | None = None) -> list[Environment]:
        """The environments that match."""
        return [
            one
            for one in self.all
            if (data is None or one.table["data"] == data)
            and (clients is None or one.table["clients"] == clients)
            and (iid is None or one.iid == iid)
        ]


def name_of(environment: Environment) -> str:
    """An environment in a few words."""
    return f"{environment.data} {environment.table['clients']} {'IID' if environment.iid else 'Non-IID'}"


Rule: TypeAlias = Callable[[Runs], list[Check]]
