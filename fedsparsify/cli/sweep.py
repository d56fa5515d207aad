"""`fedsparsify sweep`: many runs from one file."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from rich.table import Table

from ..config import read_toml
from ..federation.ledger import Entry, read_history
from ..stopping import EXIT_CODE, ending, uninterrupted
from .ending import show_stopped
from .flags import PATH, with_output
from .json_lines import JsonLines, json_lines
from .progress import bar
from .screen import Screen, screen


@with_output
@click.command("sweep")
@click.argument("file", type=PATH)
@click.option("--out", type=PATH, help="folder for the runs  [default: runs/FILE's name]")
@click.option("--resume", is_flag=True, help="go on where the sweep in --out stopped")
@click.option("--only", multiple=True, metavar="NAME", help="only runs with names like '*seed-1990'; repeatable")
@click.option("--device", default=None, help="where to train: cpu, cuda or cuda:N; wins over the file")
@click.option("--max-models", type=click.IntRange(1), help="models trained at a time  [default: what memory holds]")
def command(
    file: Path,
    out: Path | None,
    resume: bool,
    only: tuple[str, ...],
    device: str | None,
    max_models: int | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Train every combination of the lists in FILE, stacked into as few computations as possible.

    FILE is a config as for `run`, with a table of lists. A method without a listed setting runs once:

    \b
    data = "fashion-mnist"
    split = "classes:2"
    [sweep]
    method = ["fedavg", "fedsparsify-global", "random"]
    sparsity = [0.9, 0.95, 0.99]
    seed = [1990, 1991, 1992]

    Any setting of a run or of one of the methods can be varied, also those of your own methods. "method.NAME" always
    means the method's setting.

    Each run leaves a folder OUT/NAME as `run` does. Run again with --resume to go on after a stop, or, after --only,
    to add the others. With --json, each object has the run's NAME as "run".
    """
    with json_lines(as_json) as lines:
        return _sweep_on(screen(quiet, as_json), lines, file, out, resume, only, device, max_models)


def _sweep_on(
    console: Screen,
    lines: JsonLines | None,
    file: Path,
    out: Path | None,
    resume: bool,
    only: tuple[str, ...],
    device: str | None,
    max_models: int | None,
) -> int:
    """The command, with where to print."""
    with uninterrupted():  # an interrupted import may leave half a module
        from ..federation.sweep import Planned, check_folder, expand, selected, sweep

    table = read_toml(file)
    planned_runs = expand(table | ({"device": device} if device else {}), file)
    runs = selected(planned_runs, only)
    out = out or Path("runs") / file.stem
    check_folder(out, runs, resume)
    total = sum(planned.config.rounds for planned in runs)
    done: dict[str, int] = {}
    live = bar(console)
    task = live.add_task(f"{len(runs)} runs", total=total)

    def show(planned: Planned, entry: Entry) -> None:
        ended = bool(entry.stopped) or entry.round == planned.config.rounds
        if lines:
            lines.show(entry, run=planned.name)
        done[planned.name] = planned.config.rounds if ended else entry.round
        text = f"{planned.name}: round {entry.round}, {entry.shown(3)}"
        live.update(task, completed=sum(done.values()), description=text)
        for client, reason in entry.refused.items():
            said = f"{planned.name}, round {entry.round}: {client} was left out: {reason}"
            console.print(said, style="yellow")
        if entry.stopped:
            console.print(f"{planned.name} stopped early after round {entry.round}: {entry.stopped}.")
        if not console.is_terminal and ended:
            console.print(f"{planned.name}: {entry.shown()}, sparsity {entry.sparsity:.4f}")

    try:
        with live:
            sweep(runs, out, max_models, show)
        _show_ending(console, out, [run.name for run in planned_runs if (out / run.name / "model.fsz").exists()])
    except KeyboardInterrupt:
        with ending():
            given = [("--device", device), ("--max-models", max_models), *(("--only", name) for name in only)]
            again = "".join(f" {flag} {shlex.quote(str(value))}" for flag, value in given if value)
            show_stopped(console, f"sweep {file} --out {out} --resume{again}")
            return EXIT_CODE
    return 0


def _show_ending(console: Screen, out: Path, names: list[str]) -> None:
    """Write the reports of what a sweep's folder holds, and print its results."""
    from ..report import write_report, write_sweep_report

    counted = f"{len(names)} run" + "s" * (len(names) != 1)
    histories = {name: read_history(out / name / "history.jsonl") for name in names}
    kinds = {history[-1].headline for history in histories.values()}
    column = kinds.pop() if len(kinds) == 1 else ""  # runs of several tasks name their measures in the cells
    results = Table("run", column or "measure", "sparsity", "parameters sent", title=f"{counted} in {out}/")
    for name, history in histories.items():
        sent = sum(entry.download_params + entry.upload_params for entry in history)
        last = history[-1]
        shown = last.shown().split()[-1] if column else last.shown()
        results.add_row(name, shown, f"{last.sparsity:.4f}", f"{sent / 1e6:,.1f} million")
        write_report(out / name)
    console.print(results)
    page = write_sweep_report(out)
    console.print(f"Page: {page}", soft_wrap=True)
    console.result(f"{page}: {counted}")
