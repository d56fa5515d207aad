"""The progress bar of a run, and the summary at its end."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType

from rich import progress as bars
from rich.console import Console
from rich.table import Table

from ..config import RunConfig
from ..federation.ledger import Entry, best_of
from ..recipes import PAPER
from ..text import plain
from ..wire.artefact import load
from .screen import Screen
from .units import fewer, smaller


def bar(console: Console) -> bars.Progress:
    """A bar with rounds done, time taken and time left; nothing if the output is not a terminal."""
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left"),
        bars.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class Progress:
    """A live bar on a terminal; elsewhere, one line per tenth of the run, or per round."""

    def __init__(self, console: Screen, config: RunConfig, every_round: bool = False) -> None:
        self._console, self._rounds = console, config.rounds
        self._step = 1 if every_round else max(1, config.rounds // 10)  # rounds per line
        self.round = 0
        self._empty: set[str] = set()
        self._bar = bar(console)
        self._task = self._bar.add_task(plain(f"{_what(config)} on {config.data}"), total=config.rounds)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar from the screen."""
        self._bar.stop()

    def show(self, entry: Entry) -> None:
        """Show a finished round."""
        self.round = entry.round
        text = f"{entry.shown(3)}  sparsity {entry.sparsity:.3f}"
        text += "" if entry.epsilon is None else f"  ε {entry.epsilon:.3g}"
        self._bar.update(self._task, completed=entry.round, description=text)
        for client, reason in entry.refused.items():
            said = f"round {entry.round}: {plain(client)} was left out: {plain(reason, 400)}"
            self._console.event(said, "yellow", round=entry.round, left_out=plain(client))
        for client, reason in entry.bounded.items():
            self._console.event(
                f"round {entry.round}: {plain(client)}: {plain(reason, 400)}", "yellow", round=entry.round
            )
        for name in sorted({*entry.empty} - self._empty):
            self._console.event(f"round {entry.round}: no weight is left in {plain(name)}", "yellow")
        self._empty = {*entry.empty}
        if entry.stopped:
            self._console.event(f"Stopped early after round {entry.round} of {self._rounds}: {entry.stopped}.")
        if not self._console.is_terminal and (entry.round % self._step == 0 or entry.round == self._rounds):
            said = f"round {entry.round}/{self._rounds}  {text}  {entry.seconds:.2f} s"
            metrics = {plain(name): value for name, value in entry.metrics.items() if math.isfinite(value)}
            more: dict[str, object] = {"metrics": metrics} if metrics else {}
            more |= {**_numbers(entry), "rounds": self._rounds, "left_out": len(entry.refused)}
            self._console.event(said, "", **more)


def _numbers(entry: Entry) -> dict[str, float]:
    """What a line of JSON says of a round; JSON has no NaN."""
    names = ("round", "accuracy", "loss", "sparsity", "nonzero", "clients", "seconds", "epsilon")
    return {name: value for name in names if (value := getattr(entry, name)) is not None and math.isfinite(value)}


def summary(config: RunConfig, history: list[Entry], model: Path) -> Table:
    """The run in a dozen lines."""
    table = Table(title=plain(f"{_what(config)} on {config.data}, {config.split}"), show_header=False, min_width=56)
    for name, value in summary_rows(config, history, model):
        table.add_row(name, value)
    return table


def took_part(config: RunConfig, history: list[Entry]) -> str:
    """How many clients' updates were merged, in the rounds that there were."""
    counts = [entry.clients for entry in history if entry.round]
    if not counts or {*counts} == {config.participants}:
        return f"{config.participants} of {config.clients} per round"
    mean = sum(counts) / len(counts)
    wanted = f"{config.participants} of {config.clients} were wanted"
    return f"{mean:.1f} per round on average, {min(counts)} to {max(counts)} ({wanted})"


def summary_rows(config: RunConfig, history: list[Entry], model: Path) -> list[tuple[str, str]]:
    """The lines of the summary as pairs of text."""
    last = history[-1]
    best = best_of(history)
    total = load(model).layout.total
    sent = sum(entry.download_params + entry.upload_params for entry in history)
    dense = sum(entry.transfers * total for entry in history if entry.round)
    size = model.stat().st_size
    taken = sum((entry.download_bytes or 0) + (entry.upload_bytes or 0) for entry in history)
    return [
        ("network", f"{plain(config.network)}, {total:,} parameters"),
        ("clients", f"{took_part(config, history)}, {_rounds(config, last)} rounds"),
        (last.headline, f"{last.shown().split()[-1]}  (best {best.shown().split()[-1]}, round {best.round})"),
        *((name, f"{value:.4g}") for name, value in last.metrics.items() if name != last.headline),
        *_client_rows(config, last),
        ("sparsity", f"{last.sparsity:.4f}  ({last.nonzero:,} parameters left)"),
        ("parameters sent", f"{sent / 1e6:,.1f} million  ({fewer(sent, dense)} dense)"),
        (
            "bytes sent",
            f"{taken / 1e6:,.1f} MB  ({fewer(taken, 4 * dense)} dense)" if taken else "not counted",
        ),
        *([] if last.epsilon is None else [("privacy", _privacy(config, last.epsilon))]),
        ("model file", f"{size:,} bytes  ({smaller(size, 4 * total)} dense float32)"),
        ("time", f"{sum(entry.seconds for entry in history):,.1f} s"),
    ]


def _rounds(config: RunConfig, last: Entry) -> str:
    """How many rounds were run."""
    return f"{last.round} of {config.rounds}" if last.stopped else str(config.rounds)


def _client_rows(config: RunConfig, last: Entry) -> list[tuple[str, str]]:
    """What clients measured on the samples that they hold out."""
    view = last.client_views.get(last.headline)
    if not view:
        return []
    if config.evaluate == "clients":
        rows = [("measured by", f"{view['clients']} clients: mean over clients, weighted by samples")]
    else:
        rows = [(f"clients' {last.headline}", f"{view['mean']:.4f}, mean over clients, weighted by samples")]
    return [
        *rows,
        ("worst client", f"{view['worst']:.4f}, client {view['worst_client']}"),
        ("spread", f"{view['spread']:.4f}, standard deviation over {view['clients']} clients"),
    ]


def _privacy(config: RunConfig, epsilon: float) -> str:
    return f"ε = {epsilon:.4g} at δ = {config.delta:g}  (updates clipped to {config.dp_clip:g})"


def _what(config: RunConfig) -> str:
    """The method, and the recipe if it is not the paper's."""
    return config.method_name + (f" (recipe {config.recipe})" if config.recipe != PAPER else "")
