"""Our claims about FedSparsify+ (the recipe plus), checked on the runs by the mean of the last ten rounds."""

from __future__ import annotations

from .checks import GLOBAL, Check, Rule, Runs, name_of
from .environments import Environment, Series

LEVEL = 0.01  # by which FedSparsify+ may lie below the dense model with the same recipe


def _plus_and_global(runs: Runs) -> list[tuple[str, Series, Series]]:
    """FedSparsify+ and FedSparsify-Global with a name, where at most the rounds differ, and these the least."""
    found = []
    for environment in runs.where():
        others = [one for one in runs.where() if _place(one) == _place(environment)]
        others.sort(key=lambda one: abs(int(one.table["rounds"]) - int(environment.table["rounds"])))
        for level in (0.95, 0.99):
            plus = environment.find(GLOBAL, level, "plus")
            beside = [(one, other.table["rounds"]) for other in others if (one := other.find(GLOBAL, level))]
            if plus and beside:
                usual, theirs = beside[0]
                mine = environment.table["rounds"]
                rounds = "" if mine == theirs else f", {mine} and {theirs} rounds"
                found.append((f"{name_of(environment)}, {level:g}{rounds}", plus, usual))
    return found


def _place(environment: Environment) -> tuple[object, ...]:
    names = ("data", "network", "clients", "participation", "split", "epochs")
    return tuple(environment.table.get(name) for name in names)


def plus_above_global(runs: Runs) -> list[Check]:
    """FedSparsify+ is above FedSparsify-Global."""
    return [
        Check(plus.settled > usual.settled, f"{name}: {plus.settled:.3f}, Global {usual.settled:.3f}")
        for name, plus, usual in _plus_and_global(runs)
    ]


def plus_sends_no_more(runs: Runs) -> list[Check]:
    """FedSparsify+ sends at most as many values as FedSparsify-Global, in the whole run."""
    found = []
    for name, plus, usual in _plus_and_global(runs):
        mine, theirs = (one.first.sent_params[-1] / 1e6 for one in (plus, usual))
        found.append(Check(mine <= theirs, f"{name}: {mine:,.1f} million values, Global {theirs:,.1f}"))
    return found


def plus_level_with_dense(runs: Runs) -> list[Check]:
    """FedSparsify+ at 0.95 is at most `LEVEL` below the dense model with the same recipe."""
    found = []
    for environment in runs.where():
        plus, dense = environment.find(GLOBAL, 0.95, "plus"), environment.dense("plus")
        if plus and dense:
            text = f"{name_of(environment)}: {plus.settled:.3f}, {dense.label} {dense.settled:.3f}"
            found.append(Check(plus.settled >= dense.settled - LEVEL, text))
    return found


OURS: tuple[tuple[str, Rule], ...] = (
    ("Ours: FedSparsify+ is above FedSparsify-Global at 0.95 and 0.99", plus_above_global),
    ("Ours: FedSparsify+ sends no more than FedSparsify-Global", plus_sends_no_more),
    (f"Ours: FedSparsify+ at 0.95 is level with the dense model of its recipe (within {LEVEL})", plus_level_with_dense),
)
