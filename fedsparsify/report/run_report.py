"""report.md and the figures of one run folder."""

from __future__ import annotations

import json
from pathlib import Path

from ..config import load_config
from ..federation.ledger import read_history
from ..progress import summary_rows
from ..wire.files import atomic


def write_report(folder: Path) -> list[str]:
    """Draw a run's figures and write its report; returns notes for the reader, such as why a figure is missing."""
    config, history = load_config(folder / "config.toml"), read_history(folder / "history.jsonl")
    notes, held = [], folder / "partition.json"  # a server does not know who holds what
    try:
        from .figures import draw_curves, draw_partition
    except ImportError:
        notes.append("No figures: they need matplotlib, pip install 'fedsparsify[report]'.")
    else:
        title = f"{config.method_name} on {config.data}, {config.split}, {config.clients} clients"
        draw_curves(history, folder / "curves.png", title)
        if held.exists():
            draw_partition(json.loads(held.read_text()), folder / "partition.png")
    rows = "\n".join(f"| {name} | {value} |" for name, value in summary_rows(config, history, folder / "model.fsz"))
    settings = (folder / "config.toml").read_text()
    page = (
        f"# {config.method_name} on {config.data}\n\n| | |\n|---|---|\n{rows}\n\n"
        "![accuracy and size by round](curves.png)\n\n"
        f"{'![who held what](partition.png)' * held.exists()}\n\n"
        f"Reproduce: `fedsparsify run config.toml`, with\n\n```toml\n{settings}```\n"
    )
    with atomic(folder / "report.md") as file:
        file.write(page.encode())
    return notes
