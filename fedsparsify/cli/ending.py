"""What `run`, `sweep` and `serve` print at their end: what came out, or how to continue."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..config import RunConfig
from ..federation.ledger import Entry


def show_ending(console: Console, config: RunConfig, history: list[Entry], folder: Path, model: Path) -> None:
    """Write the report of a finished run; print its summary and where its files are."""
    from ..report import PAGE, write_report
    from .progress import summary

    notes = write_report(folder)
    console.print(summary(config, history, model))
    for note in notes:
        console.print(note)
    console.print(f"Files: {folder}/", soft_wrap=True)
    console.print(f"Page: {folder / PAGE}", soft_wrap=True)


def show_stopped(console: Console, command: str, when: str = "") -> None:
    """Say that the work was stopped, and which command continues it."""
    console.print(f"Stopped{when and ' '}{when}. Nothing is lost; go on with:")
    console.print(f"  fedsparsify {command}", soft_wrap=True)
