"""What `run` and `serve` end with: the run's page, its summary, and where its files are."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..config import RunConfig
from ..federation.ledger import Entry


def show_ending(console: Console, config: RunConfig, history: list[Entry], folder: Path, model: Path) -> None:
    """Write the report of a run that is over, and say what came out."""
    from ..report import PAGE, write_report
    from .progress import summary

    notes = write_report(folder)
    console.print(summary(config, history, model))
    for note in notes:
        console.print(note)
    console.print(f"Files: {folder}/", soft_wrap=True)
    console.print(f"Page: {folder / PAGE}", soft_wrap=True)
