"""Accuracy by number of rounds: what a longer run gives for what it sends.

In: environments of which some differ in their number of rounds alone. Out: for each such set, its curves and a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .environments import LAST, Environment, Series
from .runs import PLACE
from .tables import Cell, Table
from .traded import megabytes, settled

COLUMNS = ("Method", "Sparsity", "Rounds", "Seeds", "Accuracy", "C.C., sent (MM)", "Sent (MB)")


@dataclass(frozen=True)
class Lengths:
    """Environments that differ in their rounds, fewest first, under the name of the first that reports list."""

    environments: tuple[Environment, ...]
    slug: str

    @property
    def place(self) -> str:
        """Data set, clients and split, in a line."""
        return self.environments[0].place

    @property
    def curves(self) -> list[list[Series]]:
        """Series that differ in their rounds alone, fewest rounds first; at least two in each."""
        return [points for points in self._points() if len(points) > 1]

    def beside(self, level: float | None) -> list[Series]:
        """Usual series at a sparsity, or without one, that ran at one number of rounds."""
        single = [points[0] for points in self._points() if len(points) == 1]
        return [one for one in single if one.sparsity in (level, None) and not one.variant]

    def _points(self) -> list[list[Series]]:
        found: dict[tuple[object, ...], list[Series]] = {}
        for environment in self.environments:
            for one in environment.usual():
                if one.complete:
                    found.setdefault((*one.order(), one.method), []).append(one)
        return [found[key] for key in sorted(found, key=str)]


def lengths_of(environments: Sequence[Environment]) -> list[Lengths]:
    """The sets of environments that have a curve."""
    found: dict[tuple[object, ...], list[Environment]] = {}
    for one in environments:
        place = (*(one.table.get(key) for key in PLACE if key != "rounds"), one.measure)
        found.setdefault(place, []).append(one)
    made = [
        Lengths(tuple(sorted(several, key=lambda one: int(one.table["rounds"]))), several[0].slug)
        for several in found.values()
        if len(several) > 1
    ]
    return [one for one in made if one.curves]


def by_rounds(lengths: Lengths) -> Table:
    """One row per method, sparsity and number of rounds."""
    rows = [_row(one) for points in lengths.curves for one in points]
    footnote = (
        f"Accuracy: mean of the last {LAST} rounds, over seeds [lowest–highest]. C.C., sent: values sent both ways in "
        f"the whole run. MB: bytes, masks and headers included."
    )
    return Table(lengths.place, COLUMNS, tuple(rows), footnotes=(footnote,))


def _row(one: Series) -> tuple[Cell, ...]:
    ends = settled(one)
    counted = all(run.sent_bytes for run in one.complete)
    return (
        Cell(text=one.label),
        Cell(one.sparsity, "g"),
        Cell(one.first.rounds),
        Cell(len(ends)),
        Cell(sum(ends) / len(ends), ".3f", spread=(min(ends), max(ends))),
        Cell(values_sent(one), ",.1f"),
        Cell(megabytes(one) if counted else None, ",.1f"),
    )


def values_sent(one: Series) -> float:
    """Millions of values sent both ways in a run, mean over seeds."""
    return sum(run.sent_params[-1] for run in one.complete) / len(one.complete) / 1e6
