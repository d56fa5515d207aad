"""A run as reports use it: its settings, its rounds as columns, and facts about its model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..recipes import PAPER

# Columns that the history has only with `diagnose`.
DIAGNOSTICS = ("purged_norm", "purge_bound", "paper_bound", "gradient_norm", "probe_loss")
VIEWS = ("mean", "worst", "spread")  # columns of a metric that clients measured
PLACE = ("data", "network", "clients", "participation", "split", "rounds", "epochs")
INCIDENTAL = ("device", "checkpoint_every", "wire", "diagnose", "min_clients")  # change no result


@dataclass(frozen=True)
class Layer:
    """How many entries of one tensor are kept."""

    name: str
    kept: int
    size: int


@dataclass(frozen=True)
class Timing:
    """How fast a run's model ran: the content of `inference.json` in its folder."""

    latency_ms: float
    iterations: int
    items_per_second: float
    batch: int
    threads: int
    seconds: float


@dataclass(frozen=True)
class ClientRow:
    """One client over the rounds whose merge it was part of."""

    name: str
    rounds: int  # in which its update was merged
    samples: int  # at the end
    norm: float | None  # of its updates: mean ratio to the round's median
    cosine: float | None  # mean, to the merged update
    loss: float | None  # of its own training, the last one
    refused: int  # rounds in which it was left out
    bounded: int  # rounds in which its update was changed
    notes: list[str]  # how it stands out


@dataclass(frozen=True)
class Run:
    """One run: its settings, its rounds as columns, and facts about its model. Costs are summed up to each round."""

    name: str
    table: dict[str, Any]  # the resolved config, as config.toml holds it
    round: list[int]
    accuracy: list[float]  # or what `measure` names, where the task has no accuracy
    nonzero: list[int]
    paper_params: list[int]
    sent_params: list[int]
    sent_bytes: list[int] | None = None
    diagnosis: dict[str, list[float | None]] = field(default_factory=dict)
    measure: str = "accuracy"  # the headline of the run: accuracy, its first metric, or its loss
    metrics: dict[str, list[float | None]] = field(default_factory=dict)  # further metrics by name, the headline not
    client_views: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)  # metric → mean, worst, spread
    total: int | None = None  # values of the dense model; None: unknown
    seconds: float = 0.0
    layers: list[Layer] = field(default_factory=list)
    model_bytes: int | None = None
    partition: list[list[int]] | None = None  # (clients, classes)
    timing: Timing | None = None
    epsilon: list[float] | None = None  # under differential privacy: spent up to each round
    clients: list[ClientRow] = field(default_factory=list)  # what each of them sent; empty: the history does not say
    transfers: int | None = None  # how often a model was sent, where some clients did not take part; None: all did
    stopped: str = ""  # why it stopped early

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.table["method"]["name"])

    @property
    def recipe(self) -> str:
        """The recipe's name; runs older than recipes have the paper's."""
        return str(self.table.get("recipe", PAPER))

    @property
    def sparsity(self) -> float | None:
        """The target sparsity; None for methods without one."""
        value = self.table["method"].get("sparsity")
        return None if value is None else float(value)

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return int(self.table.get("seed", 0))

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return int(self.table.get("rounds", self.round[-1]))

    @property
    def complete(self) -> bool:
        """Whether all rounds are done, or the run stopped early by its own rule."""
        return self.round[-1] >= self.rounds or bool(self.stopped)

    @property
    def participants(self) -> int:
        """How many clients take part in a round."""
        return max(1, round(float(self.table.get("participation", 1.0)) * int(self.table.get("clients", 1))))

    @property
    def measured(self) -> str:
        """What the column `accuracy` is, as axes name it."""
        return (
            f"{self.measure}, mean over clients" if self.table.get("evaluate") == "clients" else f"test {self.measure}"
        )

    @property
    def exchanges(self) -> int:
        """How often a model was sent, down or up."""
        return 2 * self.participants * self.round[-1] if self.transfers is None else self.transfers

    @property
    def identity(self) -> str:
        """All settings that affect the result."""
        return json.dumps({k: v for k, v in self.table.items() if k not in INCIDENTAL}, sort_keys=True)

    def check(self) -> None:
        """Refuse settings that are not those of a run: some are required, and all are plain values."""
        method = self.table.get("method")
        if not isinstance(method, dict) or not isinstance(method.get("name"), str):
            raise TypeError("no method")
        for key, kind in (("data", str), ("split", str), ("clients", int), ("rounds", int)):
            if not isinstance(self.table.get(key), kind):
                raise TypeError(f"{key} is {self.table.get(key)!r}")
        plain = {**self.table, **method}
        if odd := [key for key, value in plain.items() if key != "method" and not _plain(value)]:
            raise TypeError(f"{odd[0]} is {plain[odd[0]]!r}")
        for key in ("lr", "epochs", "batch_size"):
            if not (isinstance(number := self.table.get(key, 1), int | float) and number > 0):
                raise ValueError(f"{key} is {number!r}")
        numbers = self.participants, self.seed, self.sparsity or 0.0
        if self.rounds < 1 or not all(math.isfinite(number) for number in numbers):
            raise ValueError("its numbers are out of range")

    def mbit(self) -> list[float]:
        """Mbit sent up to each round, as the paper counts: 32 bits per value, and per mask one bit per weight."""
        masks = 0.0
        if self.method == "fedsparsify-local" and self.total:
            masks = self.participants * self.total / 1e6
        return [32e-6 * params + masks * t for params, t in zip(self.paper_params, self.round, strict=True)]


def _plain(value: object) -> bool:
    """Whether a config file can hold the value."""
    if isinstance(value, tuple):
        return all(_plain(one) and not isinstance(one, tuple) for one in value)
    return isinstance(value, str | int | float)


def with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a config has them: lists, as files write tuples, become tuples again."""
    return {
        key: with_tuples(value) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value
        for key, value in table.items()
    }


def layer_counts(run: Run) -> dict[str, tuple[int, int]]:
    """Layer → how many of its weights and biases are kept, and of how many."""
    found: dict[str, tuple[int, int]] = {}
    for layer in run.layers:
        name = layer.name.rpartition(".")[0] or layer.name
        kept, size = found.get(name, (0, 0))
        found[name] = kept + layer.kept, size + layer.size
    return {name: counts for name, counts in found.items() if counts[1]}


def checked_partition(value: object) -> list[list[int]] | None:
    """Samples by client and class, or an error if the value is not that."""
    if value is None:
        return None
    table = np.asarray(value)
    if table.ndim != 2 or table.size == 0 or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError("not a table of counts, (clients, classes)")
    return [[int(count) for count in row] for row in table]


def checked_timing(value: object) -> Timing | None:
    """A timing, or an error if the value is not that."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("not a timing")
    timing = Timing(**value)
    if not all(isinstance(part, int | float) and part > 0 for part in asdict(timing).values()):
        raise ValueError("not a timing")
    return timing


def checked_views(value: object) -> dict[str, dict[str, list[float | None]]]:
    """What clients measured, or an error if the value is not that."""
    if not isinstance(value, dict) or not all(isinstance(one, dict) and {*one} == {*VIEWS} for one in value.values()):
        raise ValueError("not what clients measured")
    made = {str(metric): {key: list(column) for key, column in columns.items()} for metric, columns in value.items()}
    numbers = [number for columns in made.values() for column in columns.values() for number in column]
    if not all(number is None or isinstance(number, int | float) for number in numbers):
        raise ValueError("what clients measured is not numbers")
    return made
