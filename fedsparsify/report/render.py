"""Tables as Markdown, LaTeX (booktabs) and CSV. Text in cells is untrusted: it is escaped here, per format."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from ..text import plain
from .tables import Cell, Table

CELL = 1000  # maximal characters of a cell


def markdown(table: Table) -> str:
    """A table in Markdown; rows that are not ours in italics."""
    numbers = [
        all(row[i].value is not None or not row[i].text for row in table.rows) for i in range(len(table.columns))
    ]
    lines = [_row(map(_md, table.columns)), "|" + "|".join("---:" if number else "---" for number in numbers) + "|"]
    for place, row in enumerate(table.rows):
        cells = [str(cell) if cell.value is not None else _md(str(cell)) for cell in row]
        lines.append(_row([f"*{cell}*" if place in table.beside and cell != "–" else cell for cell in cells]))
    return "\n".join(lines + [f"\n{note}" for note in table.footnotes]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# Characters that begin emphasis, code, a link, HTML, a formula, a cell or an entity, and text that becomes a link.
MARKED = re.compile(
    r"[\\`*\[\]|~$]|<(?=\S)|&(?=#?\w+;)|(?<!\w)_|_(?!\w)|(?<=\w)@(?=\w)|:(?=//)|(?<=www)\.", re.IGNORECASE
)


def _md(text: str) -> str:
    """Text that Markdown shows as it is."""
    return MARKED.sub(lambda found: "&lt;" if found[0] == "<" else "\\" + found[0], plain(text, CELL))


TEX = {letter: "\\" + letter for letter in "&%#_{}$"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "×": r"$\times$",
    "“": "``",
    "”": "''",
}


def latex(table: Table) -> str:
    """A table for `\\usepackage{booktabs}`."""
    lines = [rf"\begin{{tabular}}{{@{{}}l{'r' * (len(table.columns) - 1)}@{{}}}}", r"\toprule"]
    lines += [" & ".join(_tex(name) for name in table.columns) + r" \\", r"\midrule"]
    for place, row in enumerate(table.rows):
        cells = [_tex_cell(cell) for cell in row]
        lines.append(" & ".join(rf"\textit{{{c}}}" if place in table.beside else c for c in cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([f"% {_tex(table.title)}", *(f"% {_tex(note)}" for note in table.footnotes), *lines]) + "\n"


def _tex_cell(cell: Cell) -> str:
    made = _tex(str(cell))
    if cell.factor is not None:
        made = made.replace("(x", r"($\times$")
    return "{}" + made if made[:1] in ("[", "*") else made  # after \\ these would be its argument


def _tex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    apart = re.sub(r"-(?=-)|[`'](?=[`'])|[?!](?=`)", "\\g<0>\0", plain(text, CELL))  # no ligatures
    return "".join(TEX.get(letter, letter) for letter in apart).replace("\0", "{}")


def as_csv(table: Table) -> str:
    """A table in CSV: plain numbers; factors and spreads in columns of their own."""
    factors = [any(row[i].factor is not None for row in table.rows) for i in range(len(table.columns))]
    spreads = [any(row[i].spread is not None for row in table.rows) for i in range(len(table.columns))]
    head = []
    for name, factor, spread in zip(table.columns, factors, spreads, strict=True):
        head += [name, *(f"{name} {end}" for end in ("lowest", "highest") if spread)]
        head += [f"{name} factor"] if factor else []
    lines = [[_field(name) for name in head]]
    for row in table.rows:
        made: list[str] = []
        for cell, factor, spread in zip(row, factors, spreads, strict=True):
            made.append(_plain(cell))
            low, high = cell.spread or (None, None)
            made += [_number(low), _number(high)] if spread else []
            made += [_number(cell.factor)] if factor else []
        lines.append(made)
    return "".join(",".join(line) + "\n" for line in lines)


def _plain(cell: Cell) -> str:
    return _field(cell.text) if cell.value is None else _number(cell.value)


def _field(text: str) -> str:
    """Text as a field that a spreadsheet takes neither for a formula nor for more than one field."""
    made = plain(text, CELL)
    made = f"'{made}" if unicodedata.normalize("NFKC", made).lstrip()[:1] in tuple("=+-@") else made
    return '"' + made.replace('"', '""') + '"' if re.search(r'[",;|]|^\s|\s$', made) else made


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
