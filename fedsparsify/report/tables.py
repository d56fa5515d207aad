"""The paper's tables from any set of runs, with the paper's own cells beside ours in its environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..recipes import RECIPES
from .environments import Environment, Series
from .paper import Printed, printed_rows
from .runs import Run, Timing
from .style import look_of

SERVED_SECONDS = 60  # the paper counts iterations in a minute


@dataclass(frozen=True)
class Cell:
    """A number, its format, its factor against the dense model, and its spread over seeds."""

    value: float | None = None
    form: str = ",.0f"
    factor: float | None = None
    spread: tuple[float, float] | None = None
    text: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return self.text or "–"
        made = format(self.value, self.form)
        low, high = (format(end, self.form) for end in self.spread or (0, 0))
        made += f" [{low}–{high}]" if low != high else ""
        return made + (f" (x{self.factor:.2f})" if self.factor is not None else "")


@dataclass(frozen=True)
class Table:
    """Rows of cells under column names; `beside` has the indices of the paper's rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    beside: frozenset[int] = frozenset()
    footnotes: tuple[str, ...] = ()


COMPARISON = (
    *("Method", "Sparsity", "Seeds", "Accuracy", "Params", "Size (MB)", "C.C., paper's (MM)", "C.C., sent (MM)"),
    *("Bytes sent (MB)", "Latency (ms)", "Iterations", "Throughput (items/s)"),
)


def comparison(environment: Environment) -> Table:
    """Accuracy, size, communication in three counts and speed: dense and FedSparsify-Global, as the paper's tables.

    Both stand there once per recipe. Where there is no FedSparsify-Global, every method takes part.
    """
    dense = environment.dense()
    whole = [dense] if dense else []
    whole += [one for recipe in RECIPES if (one := environment.dense(recipe)) and one is not dense]
    pruned = [one for one in environment.usual() if one.complete and not any(one is other for other in whole)]
    chosen = [one for one in pruned if one.method == "fedsparsify-global" and not one.variant] or pruned
    printed = {row.sparsity: row for row in printed_rows(environment)}
    rows: list[tuple[Cell, ...]] = []
    beside = []
    for one in whole + chosen:
        rows.append(_ours(environment, one, dense))
        theirs = printed.pop(0.0 if one is dense else one.sparsity or -1.0, None)
        if theirs and (one is dense or one.method == "fedsparsify-global"):
            beside.append(len(rows))
            rows.append(_theirs(theirs, printed_rows(environment)[0]))
    footnotes = [
        "C.C.: values exchanged in the whole run; the paper's convention charges uploads at the size after the purge, "
        "“sent” at the size that was trained and sent. Bytes include masks and headers. "
        "In parentheses: times less (size, communication, latency) or more (iterations, throughput) than dense; "
        "a size without a dense run's beside it is set against four bytes a value."
    ]
    if timings := [one.first.timing for one in chosen if one.first.timing]:
        footnotes.append(_how_timed(timings[0]))
    usual = environment.measure == "accuracy"
    named = tuple(environment.measure if name == "Accuracy" and not usual else name for name in COMPARISON)
    return Table(environment.title, named, tuple(rows), frozenset(beside), tuple(footnotes))


def _how_timed(timing: Timing) -> str:
    return (
        f"Speed: our engine, batch {timing.batch}, threads: {timing.threads}, one stream, {timing.seconds:g} s a model "
        f"in turns of a second; iterations scaled to {SERVED_SECONDS} s. The paper: DeepSparse, 8 streams on 16 cores."
    )


def accuracy_cell(one: Series) -> Cell:
    """Mean accuracy after the last round, and its spread over seeds."""
    return Cell(
        one.mean, ".3f" if one.first.measure == "accuracy" else ".4g", spread=(min(one.finals), max(one.finals))
    )


def _ours(environment: Environment, one: Series, dense: Series | None) -> tuple[Cell, ...]:
    run, total = one.first, environment.total
    all_sent = run.exchanges * total if total else None
    base = dense.first if dense and dense is not one else None

    def times(value: float | None, of: float | None) -> float | None:
        return of / value if value and of and one is not dense else None

    size = run.model_bytes
    whole = (base and base.model_bytes) or (4 * total if total else None)
    taken = run.sent_bytes[-1] if run.sent_bytes else None
    return (
        Cell(text=one.label),
        Cell(0.0 if look_of(one.method).dense else one.sparsity, "g"),
        Cell(len(one.finals)),
        accuracy_cell(one),
        Cell(run.nonzero[-1]),
        Cell(size and size / 1e6, ".3f", times(size, whole)),
        Cell(run.paper_params[-1] / 1e6, ",.1f", times(run.paper_params[-1], all_sent)),
        Cell(run.sent_params[-1] / 1e6, ",.1f", times(run.sent_params[-1], all_sent)),
        Cell(taken and taken / 1e6, ",.1f", times(taken, 4 * all_sent if all_sent else None)),
        *_speed(run.timing, base.timing if base else None),
    )


def _speed(timing: Timing | None, dense: Timing | None) -> tuple[Cell, Cell, Cell]:
    """Latency, iterations and throughput, against the dense model in the same engine."""
    if timing is None:
        return Cell(), Cell(), Cell()
    faster = more = None
    if dense:
        faster, more = dense.latency_ms / timing.latency_ms, timing.items_per_second / dense.items_per_second
    served = SERVED_SECONDS * timing.iterations / timing.seconds
    return (
        Cell(timing.latency_ms, ".3g", faster),
        Cell(served, factor=more),
        Cell(timing.items_per_second, factor=more),
    )


def _theirs(row: Printed, dense: Printed) -> tuple[Cell, ...]:
    def less(name: str) -> float | None:
        return getattr(dense, name) / getattr(row, name) if row.sparsity else None

    def more(name: str) -> float | None:
        return getattr(row, name) / getattr(dense, name) if row.sparsity else None

    return (
        Cell(text="the paper"),
        Cell(row.sparsity, "g"),
        Cell(1),
        Cell(row.accuracy, ".3f"),
        Cell(row.params),
        Cell(row.size_mb, ".3f", less("size_mb")),
        Cell(row.cost_mm, ",.0f", less("cost_mm")),
        Cell(),
        Cell(),
        Cell(row.latency_ms, ".3g", less("latency_ms")),
        Cell(row.iterations, factor=more("iterations")),
        Cell(row.throughput, factor=more("throughput")),
    )


def accuracies(environment: Environment) -> Table:
    """Method against sparsity: mean final accuracy, lowest and highest over seeds."""
    usual = [one for one in environment.usual() if one.complete]
    columns = sorted({one.sparsity for one in usual if one.sparsity is not None})
    rows: list[tuple[Cell, ...]] = []
    beside = []
    printed = {row.sparsity: row for row in printed_rows(environment)}
    ours = [one.label for one in usual if one.method == "fedsparsify-global" and not one.variant][:1]
    for label in dict.fromkeys(one.label for one in usual):
        mine = {one.sparsity: one for one in usual if one.label == label}
        method = next(iter(mine.values())).method
        reached = Cell() if None not in mine else accuracy_cell(mine[None])
        rows.append((Cell(text=label), reached, *(accuracy_cell(mine[s]) if s in mine else Cell() for s in columns)))
        dense = mine.get(None)
        if printed and (label in ours or (dense and dense is environment.dense())):
            beside.append(len(rows))
            whole = Cell(printed[0.0].accuracy, ".3f") if method != "fedsparsify-global" else Cell()
            cells = [Cell(printed[s].accuracy, ".3f") if s in printed and None not in mine else Cell() for s in columns]
            rows.append((Cell(text="the paper"), whole, *cells))
    names = ("Method", "no target", *(f"{value:g}" for value in columns))
    return Table(environment.title, names, tuple(rows), frozenset(beside))


def last_view(run: Run, key: str) -> float | None:
    """What clients measured of the last model's headline."""
    view = run.client_views.get(run.measure)
    return view[key][-1] if view else None


def every_run(environments: Sequence[Environment]) -> Table:
    """One line per run, with every value that our tables show."""
    rows = []
    runs = [run for environment in environments for run in environment.runs]
    measures = list(dict.fromkeys(name for run in runs for name in (run.measure, *run.metrics) if name != "accuracy"))
    for environment in environments:
        for one in environment.series:
            for run in one.runs:
                timing = run.timing
                tail = run.accuracy[-20:]
                rows.append(
                    (
                        Cell(text=environment.slug),
                        Cell(text=one.label),
                        Cell(run.sparsity, "g"),
                        Cell(run.seed, "d"),
                        Cell(run.round[-1], "d"),
                        Cell(run.accuracy[-1] if run.measure == "accuracy" else None, ".4f"),
                        Cell(sum(tail) / len(tail) if run.measure == "accuracy" else None, ".4f"),
                        *(Cell(last_view(run, key), ".4g") for key in ("worst", "spread")),
                        Cell(run.nonzero[-1], "d"),
                        Cell(run.model_bytes, "d"),
                        Cell(run.paper_params[-1], "d"),
                        Cell(run.sent_params[-1], "d"),
                        Cell(run.sent_bytes[-1] if run.sent_bytes else None, "d"),
                        Cell(timing.latency_ms if timing else None, ".4g"),
                        Cell(timing.items_per_second if timing else None, ".1f"),
                        Cell(run.seconds, ".1f"),
                        Cell(text=run.name),
                        *(Cell(_last(run, name), ".6g") for name in measures),
                    )
                )
    columns = (
        *("environment", "method", "sparsity", "seed", "rounds", "accuracy", "mean of the last rounds"),
        *("worst client", "spread over clients", "params"),
        *("model bytes", "paper's params", "sent params", "sent bytes", "latency ms", "items/s", "seconds", "run"),
        *measures,
    )
    return Table("runs", columns, tuple(rows))


def _last(run: Run, measure: str) -> float | None:
    """A measure other than accuracy after the last round."""
    return run.accuracy[-1] if measure == run.measure else run.metrics.get(measure, [None])[-1]
