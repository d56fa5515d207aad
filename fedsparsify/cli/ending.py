"""What `run`, `sweep` and `serve` print at their end: what came out, or how to continue."""

from __future__ import annotations

from pathlib import Path

from ..config import RunConfig
from ..federation.ledger import Entry
from .screen import Screen


def show_ending(console: Screen, config: RunConfig, history: list[Entry], folder: Path, model: Path) -> None:
    """Write the report of a finished run; print its summary and where its files are."""
    from ..report import PAGE, write_report
    from .progress import summary

    notes = write_report(folder)
    console.print(summary(config, history, model))
    for note in notes:
        console.print(note)
    console.print(f"Files: {folder}/", soft_wrap=True)
    console.print(f"Page: {folder / PAGE}", soft_wrap=True)
    console.result(result_line(history, model))


def result_line(history: list[Entry], model: Path) -> str:
    """A finished run in one line."""
    last = history[-1]
    early = f" (stopped early: {last.stopped})" if last.stopped else ""
    how = f"{last.shown()}, sparsity {last.sparsity:.4f} after round {last.round}{early}"
    return f"{model}: {how}, {model.stat().st_size:,} bytes"


def show_stopped(console: Screen, command: str, when: str = "") -> None:
    """Say that the work was stopped, and which command continues it."""
    console.print(f"Stopped{when and ' '}{when}. Nothing is lost; go on with:", style="yellow")
    console.print(f"  fedsparsify {command}", style="yellow", soft_wrap=True)
