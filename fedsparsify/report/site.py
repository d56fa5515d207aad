"""The folder that `report` writes: the page, figures as SVG and PNG, tables in three formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RunError
from ..wire.files import atomic
from .checks import DATA
from .claims import claims_table
from .environments import Environment, slug_of
from .lengths import by_rounds, lengths_of
from .page import write_page
from .render import as_csv, latex, markdown
from .tables import Table, accuracies, comparison, every_run
from .traded import last_rounds


@dataclass(frozen=True)
class Site:
    """The files that were written, and notes for the reader."""

    page: Path
    figures: list[str]
    tables: list[str]
    notes: list[str]


def write_site(environments: Sequence[Environment], notes: Sequence[str], out: Path, at: float | None = None) -> Site:
    """Write the page, the figures and the tables into `out`."""
    notes = list(notes)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out} cannot be made: {error.strerror}.") from error
    figures: list[str] = []
    try:
        from .paper_figures import draw_all
    except ImportError:
        notes.append("No figures: they need matplotlib, pip install 'fedsparsify[report]'.")
    else:
        figures = draw_all(environments, out / "figures", at)
    tables = write_tables(environments, out / "tables")
    page = out / "index.html"
    write_page(environments, notes, page)
    return Site(page, figures, tables, notes)


def tables_of(environments: Sequence[Environment]) -> dict[str, Table]:
    """Every table by the name of its file."""
    made: dict[str, Table] = {}
    for environment in environments:
        for name, table in (
            ("table", comparison(environment)),
            (environment.measure, accuracies(environment)),
            ("last-rounds", last_rounds(environment)),
        ):
            if table.rows:
                made[f"{slug_of(name)}-{environment.slug}"] = table
    for lengths in lengths_of(environments):
        made[f"lengths-{lengths.slug}"] = by_rounds(lengths)
    if any(one.table.get("data") in DATA for one in environments):
        made["claims"] = claims_table(environments)
    return made


def write_tables(environments: Sequence[Environment], folder: Path) -> list[str]:
    """Write every table as Markdown, LaTeX and CSV, and all runs as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    made = tables_of(environments)
    texts = {f"{name}.md": markdown(table) for name, table in made.items()}
    texts |= {f"{name}.tex": latex(table) for name, table in made.items()}
    texts |= {f"{name}.csv": as_csv(table) for name, table in made.items()}
    texts["runs.csv"] = as_csv(every_run(environments))
    for name, text in texts.items():
        with atomic(folder / name) as file:
            file.write(text.encode())
    return list(made)
