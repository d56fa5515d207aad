"""Fill the marked tables and figures of a Markdown page, so that neither is ever copied by hand.

<!-- table: accuracy-fashion-mnist-10-iid -->      filled with the table of that name
<!-- end -->
![…](figures/rounds-fashion-mnist-10.png)          that figure is put beside the page
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import RunError
from ..wire.files import atomic
from .environments import Environment
from .render import markdown
from .site import tables_of

TABLE = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"\]\((figures/([\w.-]+\.(?:png|svg)))\)")
NOTHING = "*No runs yet.*\n"


def filled(text: str, environments: Sequence[Environment]) -> str:
    """The page's text with every marked table made from the runs."""
    tables = {name: markdown(table) for name, table in tables_of(environments).items()}

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- table: {name} -->\n{tables.get(name, NOTHING)}<!-- end -->"

    return TABLE.sub(fill, text)


def fill_page(page: Path, environments: Sequence[Environment], figures: Path) -> list[str]:
    """Fill the tables of a page and copy the figures that it shows beside it; returns notes on missing runs."""
    try:
        text = page.read_text()
    except OSError as error:
        raise RunError(f"{page} cannot be read: {error.strerror}.") from error
    made = filled(text, environments)
    notes = [f"{page}: there are no runs for the table {name}." for name in TABLE.findall(text) if _empty(made, name)]
    for place, name in FIGURE.findall(made):
        if (figures / name).exists():
            (page.parent / "figures").mkdir(exist_ok=True)
            with atomic(page.parent / place) as file:
                file.write((figures / name).read_bytes())
        elif not (page.parent / place).exists():
            notes.append(f"{page}: there are no runs for the figure {name}.")
    with atomic(page) as file:
        file.write(made.encode())
    return notes


def _empty(text: str, name: str) -> bool:
    return f"<!-- table: {name} -->\n{NOTHING}" in text
