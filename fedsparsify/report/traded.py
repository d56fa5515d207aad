"""Accuracy at the end of a run against the bytes that it sent: a table and a figure per environment.

Accuracy is the mean of the last ten rounds: one round of unlike clients says little. Runs without bytes are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..recipes import PAPER
from .authors import reported
from .environments import LAST, Environment, Series
from .tables import Cell, Table

COLUMNS = ("Method", "Sparsity", "Seeds", "Accuracy", "Sparsity reached", "Sent (MB)", "Authors")


def counted(environment: Environment) -> list[Series]:
    """The series whose runs were finished and counted their bytes."""
    return [one for one in environment.usual() if one.complete and all(run.sent_bytes for run in one.complete)]


def settled(one: Series) -> list[float]:
    """Mean accuracy of the last ten rounds, one per seed."""
    return [sum(run.accuracy[-LAST:]) / len(run.accuracy[-LAST:]) for run in one.complete]


def megabytes(one: Series) -> float:
    """What a run sent both ways, mean over seeds."""
    totals = [run.sent_bytes[-1] / 1e6 for run in one.complete if run.sent_bytes]
    return sum(totals) / len(totals)


def last_rounds(environment: Environment) -> Table:
    """One row per method and sparsity."""
    series = counted(environment)
    whole = next((megabytes(one) for one in series if one.sparsity is None), None)
    theirs = reported(environment)
    shown = len(COLUMNS) if theirs else len(COLUMNS) - 1  # the authors' own figures, where there are any
    rows = (_row(one, whole, theirs.get((one.method, one.sparsity)), environment.total) for one in series)
    return Table(
        environment.title,
        COLUMNS[:shown],
        tuple(row[:shown] for row in rows),
        footnotes=(
            f"Accuracy: mean of the last {LAST} rounds, over seeds [lowest–highest]. Sent: bytes both ways, masks and "
            f"headers included, mean over seeds; in parentheses times less than dense. Sparsity reached: that of the "
            f"last model.",
        ),
    )


def _row(one: Series, whole: float | None, theirs: float | None, total: int | None) -> tuple[Cell, ...]:
    ends, sent = settled(one), megabytes(one)
    left = sum(run.nonzero[-1] for run in one.complete) / len(one.complete)
    return (
        Cell(text=one.label),
        Cell(one.sparsity, "g"),
        Cell(len(ends)),
        Cell(sum(ends) / len(ends), ".3f", spread=(min(ends), max(ends))),
        Cell(1 - left / total if total and one.sparsity is not None else None, ".3f"),
        Cell(sent, ",.1f", whole / sent if whole and one.sparsity is not None else None),
        Cell(theirs if one.recipe == PAPER and not one.variant else None, ".3f"),
    )


def lines_of(environment: Environment) -> dict[str, Sequence[Series]]:
    """Label → series by sparsity, of methods that count bytes."""
    lines: dict[str, list[Series]] = {}
    for one in counted(environment):
        lines.setdefault(one.label, []).append(one)
    return {label: sorted(series, key=lambda one: one.sparsity or 0.0) for label, series in lines.items()}
