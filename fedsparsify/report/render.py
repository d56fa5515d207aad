"""Tables as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from .tables import Cell, Table


def markdown(table: Table) -> str:
    """A table as Markdown shows it; what is not ours in italics."""
    numbers = [
        all(row[i].value is not None or not row[i].text for row in table.rows) for i in range(len(table.columns))
    ]
    lines = [_row(table.columns), "|" + "|".join("---:" if number else "---" for number in numbers) + "|"]
    for place, row in enumerate(table.rows):
        cells = [str(cell) for cell in row]
        lines.append(_row([f"*{cell}*" if place in table.beside and cell != "–" else cell for cell in cells]))
    return "\n".join(lines + [f"\n{note}" for note in table.notes]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


SPECIAL = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "–": "--", "×": r"$\times$", "“": "``", "”": "''"}


def latex(table: Table) -> str:
    """A table for `\\usepackage{booktabs}`."""
    lines = [rf"\begin{{tabular}}{{@{{}}l{'r' * (len(table.columns) - 1)}@{{}}}}", r"\toprule"]
    lines += [" & ".join(_tex(name) for name in table.columns) + r" \\", r"\midrule"]
    for place, row in enumerate(table.rows):
        cells = [_tex(str(cell)) for cell in row]
        lines.append(" & ".join(rf"\textit{{{c}}}" if place in table.beside else c for c in cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([f"% {table.title}", *(f"% {note}" for note in table.notes), *lines]) + "\n"


def _tex(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text).replace("(x", r"($\times$")


def as_csv(table: Table) -> str:
    """A table for other programs: plain numbers, factors and spreads in columns of their own."""
    factors = [any(row[i].factor is not None for row in table.rows) for i in range(len(table.columns))]
    spreads = [any(row[i].spread is not None for row in table.rows) for i in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = []
    for name, factor, spread in zip(table.columns, factors, spreads, strict=True):
        head += [name, *(f"{name} {end}" for end in ("lowest", "highest") if spread)]
        head += [f"{name} factor"] if factor else []
    writer.writerow(head)
    for row in table.rows:
        made: list[str] = []
        for cell, factor, spread in zip(row, factors, spreads, strict=True):
            made.append(_plain(cell))
            low, high = cell.spread or (None, None)
            made += [_number(low), _number(high)] if spread else []
            made += [_number(cell.factor)] if factor else []
        writer.writerow(made)
    return out.getvalue()


def _plain(cell: Cell) -> str:
    return cell.text if cell.value is None else _number(cell.value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
