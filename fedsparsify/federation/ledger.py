"""history.jsonl: one line per round, on disk before the next round begins.

In: an `Entry` per round. Out: the entries of a history file, checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..tasks import higher_is_better
from ..text import plain
from ..wire.files import atomic


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What happened in one round: a line of `history.jsonl`. `entry["accuracy"]` is `entry.accuracy`.

    Args:
        round: the round; 0 where a method has a round before the first.
        accuracy: of the model that the round ended with; None where the task has none.
        loss: mean loss on the test samples, or on those that clients hold out.
        target_sparsity: what the schedule asked for.
        sparsity: pruned fraction of the trainable entries.
        nonzero: values of the merged model that survive.
        clients: whose updates were merged.
        download_params: values sent to the clients that were asked.
        upload_params: values the clients sent.
        paper_params: the same in the paper's convention: uploads at the size after the purge, round 0 for nothing.
        download_bytes: what those values took as bytes, masks and headers included; None: not sent.
        upload_bytes: the same for uploads.
        train_loss: mean training loss of the clients; None: not published, under differential privacy.
        seconds: how long the round took.
        metrics: further ones that the run names, in its order.
        refused: client → why its answer was left out.
        bounded: client → which bound it broke; it was merged within it.
        updates: quantity → its value for each client merged.
        epsilon: under differential privacy: what the run has cost so far.
        empty: trainable tensors of which no weight is left.
        purged_norm: with `diagnose`: norm of what the purge removed.
        purge_bound: with `diagnose`: our bound on it.
        paper_bound: with `diagnose`: the paper's bound on it.
        gradient_norm: with `diagnose`: norm of the gradient under the mask, on a fixed probe of training samples.
        probe_loss: with `diagnose`: loss on that probe.
        client_bytes: over a network: client → bytes down and up.
        phases: over a network: seconds by what they went into.
        asked: over a network: how often a model was sent to a client, to train or to evaluate.
        answered: over a network: clients that sent a model back, used or refused.
        stopped: why the run stopped early after this round.
        client_views: metric → mean, worst, spread and values by client, with `evaluate` at clients.

    Example:
        >>> from fedsparsify import RunConfig, run
        >>> history = run(RunConfig(rounds=1, epochs=1, clients=2)).history
        >>> [(entry.round, entry.clients, entry["refused"]) for entry in history]
        [(1, 2, {})]
    """

    round: int
    accuracy: float | None = None
    loss: float
    target_sparsity: float
    sparsity: float
    nonzero: int
    clients: int
    download_params: int
    upload_params: int
    paper_params: int
    download_bytes: int | None = None
    upload_bytes: int | None = None
    train_loss: float | None = None
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    bounded: dict[str, str] = field(default_factory=dict)
    updates: dict[str, list[float | None]] = field(default_factory=dict)
    epsilon: float | None = None
    empty: list[str] = field(default_factory=list)
    purged_norm: float | None = None
    purge_bound: float | None = None
    paper_bound: float | None = None
    gradient_norm: float | None = None
    probe_loss: float | None = None
    client_bytes: dict[str, list[int]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    asked: int | None = None
    answered: int | None = None
    stopped: str = ""
    client_views: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        names = ("loss", "sparsity", "nonzero", "clients")
        shown = {"round": self.round, self.headline: self.score} | {name: getattr(self, name) for name in names}
        return f"Entry({', '.join(f'{name}={value:.6g}' for name, value in shown.items())}, …)"

    @property
    def headline(self) -> str:
        """What `score` is: accuracy; without it the first metric; without any the loss."""
        return "accuracy" if self.accuracy is not None else next(iter(self.metrics), "loss")

    @property
    def score(self) -> float:
        """The value that a line of text shows."""
        return self.accuracy if self.accuracy is not None else next(iter(self.metrics.values()), self.loss)

    def shown(self, digits: int = 4) -> str:
        """`accuracy 0.9123`, or another headline.

        Args:
            digits: after the point.

        Returns:
            Text.
        """
        return f"{plain(self.headline, 40)} {self.score:.{digits}{'f' if self.headline == 'accuracy' else 'g'}}"

    def __getitem__(self, name: str) -> Any:
        return asdict(self)[name]

    @property
    def transfers(self) -> int:
        """How often a model was sent, down or up."""
        both = self.clients + len(self.refused)
        return (both if self.asked is None else self.asked) + (both if self.answered is None else self.answered)


def best_of(history: Sequence[Entry]) -> Entry:
    """The round with the best headline; a user's own metric is taken to be better where it is higher."""
    sign = 1 if higher_is_better(history[-1].headline) else -1
    return max(history, key=lambda entry: (entry.score == entry.score, sign * entry.score))


OPTIONAL = (
    "accuracy",
    "metrics",
    "train_loss",
    "epsilon",
    "bounded",
    "updates",
    "empty",
    "purged_norm",
    "purge_bound",
    "paper_bound",
    "gradient_norm",
    "probe_loss",
    "client_bytes",
    "phases",
    "asked",
    "answered",
    "client_views",
    "stopped",
)


def line(entry: Entry) -> str:
    """A round as the file holds it; what was not asked for, and what only a network has, is left out."""
    table = asdict(entry)
    return (
        json.dumps(
            {name: table[name] for name in table if name not in OPTIONAL or table[name] not in (None, {}, [], "")}
        )
        + "\n"
    )


class Ledger:
    """The history of a run, in memory and, where a path is given, on disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.entries: list[Entry] = []

    def append(self, entry: Entry) -> None:
        """Add a round; a kill cannot take it back, a power cut can until `sync`."""
        self.entries.append(entry)
        self._write(line(entry))

    def sync(self) -> None:
        """Have everything on the disk itself: before a checkpoint is written, which must never be ahead."""
        self._write("", sync=True)

    def _write(self, text: str, sync: bool = False) -> None:
        if self.path is None:
            return
        try:
            with self.path.open("a") as file:
                file.write(text)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}.") from error

    def rewind(self, round: int | None) -> None:
        """Forget everything after `round` (None: everything), and a line that was cut off while it was written."""
        if self.path is None:
            return
        entries = read_history(self.path) if self.path.exists() else []
        self.entries = [entry for entry in entries if round is not None and entry.round <= round]
        numbers = [entry.round for entry in self.entries]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
            wrong = next(i for i, number in enumerate(numbers) if number != numbers[0] + i)
            raise RunError(
                f"{self.path}, line {wrong + 1} is of round {numbers[wrong]}, after round {numbers[wrong - 1]}. "
                f"{_remedy(self.path)}"
            )
        if round is not None and (not numbers or numbers[-1] != round):
            last = numbers[-1] if numbers else 0
            raise RunError(
                f"{self.path} ends at round {last}, but the checkpoint is of round {round}. {_remedy(self.path)}"
            )
        lines = "".join(map(line, self.entries))
        with atomic(self.path) as file:
            file.write(lines.encode())


def _remedy(path: Path) -> str:
    """How to go on from a history that cannot be used."""
    checkpoint = path.with_name("checkpoint.fsz")
    return (
        f"Put back a copy of it; or delete {path} and {checkpoint}, and --resume repeats the run from its first round."
    )


def read_history(path: Path) -> list[Entry]:
    """The rounds in a history file; a last line without its end is passed over."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    entries = []
    for number, text in enumerate(lines, 1):
        try:
            entries.append(_entry(json.loads(text)))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{path}, line {number} is not a round of a run: {error}. {_remedy(path)}") from error
    return entries


def _entry(table: dict[str, Any]) -> Entry:
    """A round from a line's table; names that a later version writes are passed over."""
    known = {field.name: field.type for field in fields(Entry)}
    for name, kind in known.items():
        value = table.get(name)
        wanted = {"int": (int,), "float": (int, float), "float | None": (int, float, type(None))}.get(str(kind))
        if name in table and wanted and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise ValueError(f"{name} must be a number. Received: {value!r}")
    metrics = table.get("metrics", {})
    if not isinstance(metrics, dict) or not all(isinstance(value, int | float) for value in metrics.values()):
        raise ValueError(f"metrics must be numbers by name. Received: {metrics!r}")
    return Entry(**{name: value for name, value in table.items() if name in known})
