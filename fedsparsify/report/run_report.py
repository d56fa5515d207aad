"""The report of a finished run in its folder: its page, and its curves and partition as pictures."""

from __future__ import annotations

from pathlib import Path

from .environments import environments_of
from .load import load_runs
from .page import write_page

PAGE = "report.html"


def write_report(folder: Path) -> list[str]:
    """Draw a run's figures and write its page; returns notes, such as why a figure is missing."""
    runs, notes = load_runs([folder])
    environments = environments_of(runs)
    write_page(environments, notes, folder / PAGE)
    try:
        from .figures import draw_curves, draw_partition
    except ImportError:
        return [*notes, "No pictures: they need matplotlib, pip install 'fedsparsify[report]'."]
    for environment in environments:
        run = environment.runs[0]
        draw_curves(run, folder / "curves.png", f"{environment.series[0].label} on {environment.title}")
        if run.partition:
            draw_partition(run.partition, folder / "partition.png")
    return notes


def write_sweep_report(folder: Path) -> Path:
    """Write the page of all runs of a sweep; returns its path."""
    runs, notes = load_runs([folder])
    write_page(environments_of(runs), notes, folder / PAGE)
    return folder / PAGE
