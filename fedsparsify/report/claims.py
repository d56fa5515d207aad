"""The claims of the paper's text, each checked on the runs: holds, in part, does not hold, or no runs.

Where runs have the recipe plus, our own claims about it follow (`plus_claims.py`).

Words such as “similar” need a number to be checked: `NEAR`, `CLOSE` and `FAR` are ours. Each answer shows the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..recipes import PAPER
from .checks import GLOBAL, Check, Rule, Runs, name_of
from .environments import Environment, Series, varied
from .paper import printed_rows
from .plus_claims import OURS
from .style import label_of
from .tables import Cell, Table

NEAR, CLOSE, FAR = 0.02, 0.03, 0.10
LOCAL = "fedsparsify-local"


def _mean(environment: Environment, method: str, sparsity: float | None = None) -> float | None:
    found = environment.find(method, sparsity)
    return found.mean if found else None


def _dense(environment: Environment) -> float | None:
    found = environment.dense(PAPER)
    return found.mean if found else None


def _against(
    environments: Iterable[Environment], ours: str, others: Iterable[str], levels: Iterable[float], by: float = 0.0
) -> list[Check]:
    """`ours` is above each of the others by more than `by`, at each sparsity."""
    found = []
    for environment in environments:
        for level in levels:
            mine = _mean(environment, ours, level)
            for other in others:
                theirs = _mean(environment, other, level)
                if mine is not None and theirs is not None:
                    text = f"{name_of(environment)}, {level:g}: {mine:.3f}, {label_of(other)} {theirs:.3f}"
                    found.append(Check(mine - theirs > by, text))
    return found


def tables_are_met(runs: Runs) -> list[Check]:
    """Final accuracy is not more than `NEAR` below the paper's tables, row by row."""
    found = []
    for environment in runs.where():
        for row in printed_rows(environment):
            mine = _mean(environment, GLOBAL, row.sparsity) if row.sparsity else _dense(environment)
            if mine is not None:
                text = f"{name_of(environment)}, {row.sparsity:g}: {mine:.3f}, the paper {row.accuracy:.3f}"
                found.append(Check(mine >= row.accuracy - NEAR, text))
    return found


def harder_when_non_iid(runs: Runs) -> list[Check]:
    """Final accuracy falls from IID to Non-IID, for every method and sparsity."""
    found = []
    for even in runs.where(iid=True):
        for uneven in runs.where(even.table["data"], even.table["clients"], iid=False):
            for one in even.usual():
                theirs = _mean(uneven, one.method, one.sparsity)
                if one.finals and theirs is not None and not one.variant and one.recipe == PAPER:
                    level = "" if one.sparsity is None else f" {one.sparsity:g}"
                    text = f"{even.data} {even.table['clients']}, {one.label}{level}: {one.mean:.3f} to {theirs:.3f}"
                    found.append(Check(one.mean > theirs, text))
    return found


def alike_at_moderate_sparsity(runs: Runs, but: str = "") -> list[Check]:
    """The pruning methods lie close together on IID data up to 0.9."""
    found = []
    for environment in runs.where("fashion-mnist", iid=True):
        for level in (0.8, 0.85, 0.9):
            usual = [one for one in environment.usual() if one.sparsity == level and one.recipe == PAPER]
            series = [one for one in usual if one.finals and one.method != but]
            if len(series) > 2:
                low, high = min(series, key=lambda one: one.mean), max(series, key=lambda one: one.mean)
                text = f"{name_of(environment)}, {level:g}: {low.label} {low.mean:.3f}, {high.label} {high.mean:.3f}"
                found.append(Check(high.mean - low.mean <= CLOSE, text))
    return found


def alike_but_oneshot(runs: Runs) -> list[Check]:
    """The same without OneShot, which is never tuned after its purge."""
    return alike_at_moderate_sparsity(runs, "oneshot")


def others_fall_at_the_extreme(runs: Runs) -> list[Check]:
    """FedSparsify-Global is above every other pruning method at 0.95 and 0.99, Non-IID."""
    others = ("snip", "grasp", "oneshot", "oneshot-ft", "random")
    return _against(runs.where("fashion-mnist", iid=False), GLOBAL, others, (0.95, 0.99))


def tuning_saves_oneshot(runs: Runs) -> list[Check]:
    """Tuning lifts OneShot by a large margin: the paper's 0.2 to 0.7 (IID, 0.99) and 0.25 to 0.67 (Non-IID, 0.95)."""
    cases = [*((one, 0.99) for one in runs.where("fashion-mnist", 10, True))]
    cases += [(one, 0.95) for one in runs.where("fashion-mnist", 10, False)]
    return [check for one, level in cases for check in _against([one], "oneshot-ft", ("oneshot",), (level,), FAR)]


def prunefl_below_dense(runs: Runs) -> list[Check]:
    """PruneFL is clearly below the dense model on Non-IID data."""
    found = []
    for environment in runs.where(iid=False):
        mine, dense = _mean(environment, "prunefl"), _dense(environment)
        if mine is not None and dense is not None:
            found.append(Check(mine < dense - CLOSE, f"{name_of(environment)}: {mine:.3f}, dense {dense:.3f}"))
    return found


def prunefl_drops_when_readjusted(runs: Runs) -> list[Check]:
    """PruneFL's accuracy falls in the rounds that readjust its mask; the round before it is the last that is known."""
    found = []
    for environment in runs.where():
        series = environment.find("prunefl")
        for run in series.complete[:1] if series else ():
            at = dict(zip(run.round, run.accuracy, strict=True))
            for t in (50, 100, 150):
                before = max((known for known in at if known < t), default=None)
                if t in at and before is not None and t < run.rounds:
                    text = f"{name_of(environment)}, round {before} to {t}: {at[before]:.3f} to {at[t]:.3f}"
                    found.append(Check(at[t] < at[before], text))
    return found


def random_fails_late(runs: Runs) -> list[Check]:
    """Random is close at 0.8 and far below at 0.99."""
    found = []
    for environment in runs.where():
        for level, close in ((0.8, True), (0.99, False)):
            mine, theirs = _mean(environment, "random", level), _mean(environment, GLOBAL, level)
            if mine is not None and theirs is not None:
                good = theirs - mine <= CLOSE if close else theirs - mine > FAR
                found.append(Check(good, f"{name_of(environment)}, {level:g}: {mine:.3f}, Global {theirs:.3f}"))
    return found


def global_above_local(runs: Runs) -> list[Check]:
    """FedSparsify-Global is above FedSparsify-Local."""
    return _against(runs.where(), GLOBAL, (LOCAL,), (0.8, 0.85, 0.9, 0.95, 0.99))


def level_with_dense(runs: Runs) -> list[Check]:
    """FedSparsify-Global up to 0.95 is at most slightly below the dense model."""
    found = []
    for environment in runs.where():
        dense = _dense(environment)
        for level in (0.8, 0.85, 0.9, 0.95):
            mine = _mean(environment, GLOBAL, level)
            if mine is not None and dense is not None:
                text = f"{name_of(environment)}, {level:g}: {mine:.3f}, dense {dense:.3f}"
                found.append(Check(mine >= dense - CLOSE, text))
    return found


def above_dense_with_many_clients(runs: Runs) -> list[Check]:
    """CIFAR-100, 100 clients: FedSparsify-Global is above FedAvg and FedProx."""
    found = []
    for environment in runs.where("cifar100", 100):
        dense = max(filter(None, (_dense(environment), _mean(environment, "fedprox"))), default=None)
        for level in (0.9, 0.95, 0.99):
            mine = _mean(environment, GLOBAL, level)
            if mine is not None and dense is not None:
                found.append(Check(mine > dense, f"{name_of(environment)}, {level:g}: {mine:.3f}, dense {dense:.3f}"))
    return found


def random_is_strong(runs: Runs) -> list[Check]:
    """CIFAR-10: Random is about as good as SNIP and GraSP, or better, up to 0.95."""
    return _against(runs.where("cifar10"), "random", ("snip", "grasp"), (0.8, 0.85, 0.9, 0.95), -CLOSE)


def tuned_oneshot_fails_at_99(runs: Runs) -> list[Check]:
    """CIFAR-10: OneShot with tuning is close to FedSparsify up to 0.95 and far below at 0.99."""
    close = _against(runs.where("cifar10"), "oneshot-ft", (GLOBAL,), (0.8, 0.85, 0.9, 0.95), -CLOSE)
    return close + _against(runs.where("cifar10"), GLOBAL, ("oneshot-ft",), (0.99,), FAR)


def initial_pruning_fails_on_cifar100(runs: Runs) -> list[Check]:
    """CIFAR-100: SNIP and GraSP learn nothing (accuracy below 0.05)."""
    found = []
    for environment in runs.where("cifar100"):
        for method in ("snip", "grasp"):
            for level in (0.9, 0.95, 0.99):
                mine = _mean(environment, method, level)
                if mine is not None:
                    text = f"{name_of(environment)}, {label_of(method)} {level:g}: {mine:.3f}"
                    found.append(Check(mine < 0.05, text))
    return found


def more_for_the_same_bits(runs: Runs) -> list[Check]:
    """FedSparsify-Global at 0.9 is above the dense model at the cost where it ends."""
    found = []
    for environment in runs.where():
        mine, dense = environment.find(GLOBAL, 0.9), environment.dense(PAPER)
        if mine and dense:
            spent = mine.first.mbit()[-1]
            theirs = np.mean([np.interp(spent, run.mbit(), run.accuracy) for run in dense.complete])
            text = f"{name_of(environment)}, {spent:,.0f} Mbit: {mine.mean:.3f}, dense {theirs:.3f}"
            found.append(Check(bool(mine.mean > theirs), text))
    return found


def _tuned(runs: Runs, key: str) -> dict[float, Series]:
    for environment in runs.where("fashion-mnist", 10, False):
        series = [one for one in varied(environment, key) if one.finals]
        if series:
            return {float(one.runs[0].table["method"][key]): one for one in series}
    return {}


def small_f_alike(runs: Runs) -> list[Check]:
    """F = 1 and F = 2 end close to each other."""
    found = _tuned(runs, "every")
    if not {1, 2} <= found.keys():
        return []
    one, two = found[1].mean, found[2].mean
    return [Check(abs(one - two) <= CLOSE, f"F = 1: {one:.3f}, F = 2: {two:.3f}")]


def large_f_drops(runs: Runs) -> list[Check]:
    """With F of 5 and more, accuracy drops where a purge takes place: more than with F = 1 in the same rounds."""
    found = _tuned(runs, "every")
    checks = []
    for every, series in sorted(found.items()):
        if every >= 5:
            drop, usual = _deepest(series, int(every)), _deepest(found[1], int(every)) if 1 in found else 0.0
            checks.append(Check(drop > usual, f"F = {every:g}: deepest drop {drop:.3f}, F = 1 there {usual:.3f}"))
    return checks


def _deepest(series: Series, every: int) -> float:
    run = series.first
    at = dict(zip(run.round, run.accuracy, strict=True))
    drops = [at[t - 1] - at[t] for t in at if t % every == 0 and t - 1 in at]
    return max(drops, default=0.0)


def three_is_a_good_exponent(runs: Runs) -> list[Check]:
    """n = 3 ends above larger exponents, and not below n = 1."""
    found = _tuned(runs, "exponent")
    if 3 not in found:
        return []
    mine = found[3].mean
    return [
        Check(mine > one.mean if n > 3 else mine >= one.mean - CLOSE, f"n = 3: {mine:.3f}, n = {n:g}: {one.mean:.3f}")
        for n, one in sorted(found.items())
        if n != 3
    ]


def average_prunes_less(runs: Runs) -> list[Check]:
    """With the plain average more parameters are left than with the vote, at the beginning of training."""
    found = []
    for environment in runs.where("fashion-mnist", 10):
        pair = {str(one.runs[0].table["method"]["aggregate"]): one.first for one in varied(environment, "aggregate")}
        if pair.keys() == {"majority", "average"}:
            left = {rule: dict(zip(run.round, run.nonzero, strict=True)) for rule, run in pair.items()}
            t = 10 if all(10 in rounds for rounds in left.values()) else 1
            text = f"{name_of(environment)}, round {t}: {left['average'][t]:,} against {left['majority'][t]:,}"
            found.append(Check(left["average"][t] > left["majority"][t], text))
    return found


CLAIMS: tuple[tuple[str, Rule], ...] = (
    (f"The accuracies of the paper's three tables (ours above, or at most {NEAR} below)", tables_are_met),
    ("Non-IID data lowers the final accuracy of every method", harder_when_non_iid),
    (f"FashionMNIST, IID, up to 0.9: pruning methods perform similarly (within {CLOSE})", alike_at_moderate_sparsity),
    ("The same, OneShot without tuning left out", alike_but_oneshot),
    ("FashionMNIST, Non-IID, 0.95 and 0.99: FedSparsify-Global is above the other methods", others_fall_at_the_extreme),
    (f"FashionMNIST: tuning lifts OneShot by a large margin (over {FAR})", tuning_saves_oneshot),
    (f"Non-IID: PruneFL is below the dense model (by over {CLOSE})", prunefl_below_dense),
    ("PruneFL's accuracy drops when its mask is readjusted, every 50 rounds", prunefl_drops_when_readjusted),
    (f"Random is fine at 0.8 (within {CLOSE} of Global) and fails at 0.99 (over {FAR} below)", random_fails_late),
    ("FedSparsify-Global is above FedSparsify-Local in almost all environments", global_above_local),
    (f"FedSparsify-Global up to 0.95 is level with the dense model, or above (within {CLOSE})", level_with_dense),
    ("CIFAR-100, 100 clients: FedSparsify is above FedAvg and FedProx", above_dense_with_many_clients),
    (f"CIFAR-10: Random is a match for SNIP and GraSP up to 0.95 (within {CLOSE})", random_is_strong),
    ("CIFAR-10: OneShot with tuning matches FedSparsify up to 0.95 and fails at 0.99", tuned_oneshot_fails_at_99),
    ("CIFAR-100: SNIP and GraSP do not learn", initial_pruning_fails_on_cifar100),
    ("For the same bits FedSparsify reaches a higher accuracy than FedAvg", more_for_the_same_bits),
    (f"F = 1 and F = 2 behave similarly (final accuracy within {CLOSE})", small_f_alike),
    ("F of 5 and more: accuracy drops at every purge", large_f_drops),
    ("n = 3 is a good trade-off: above n > 3, level with n < 3", three_is_a_good_exponent),
    ("The average prunes less than the majority vote at the beginning", average_prunes_less),
)


def claims_table(environments: Sequence[Environment]) -> Table:
    """Every claim, its verdict, and the figures: first those that do not fit.

    The paper's claims are about runs of its own length.
    """
    runs, papers = Runs(environments), Runs([one for one in environments if not one.other_length])
    rows = []
    plus = any(run.recipe == "plus" for environment in runs.all for run in environment.runs)
    for text, rule in (*CLAIMS, *(OURS if plus else ())):
        checks = rule(runs if (text, rule) in OURS else papers)
        good = sum(check.holds for check in checks)
        if not checks:
            verdict = "no runs"
        elif good == len(checks):
            verdict = "holds"
        else:
            verdict = f"in part ({good} of {len(checks)})" if good else "does not hold"
        shown = sorted(checks, key=lambda check: check.holds)[:3]
        more = f"; {len(checks) - len(shown)} more" if len(checks) > len(shown) else ""
        figures = "; ".join(("" if check.holds else "✗ ") + check.figures for check in shown) + more
        rows.append((Cell(text=text), Cell(text=verdict), Cell(text=figures)))
    return Table("The paper's claims", ("the paper says", "here", "figures (✗: against it)"), tuple(rows))
