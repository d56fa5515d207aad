"""`fedsparsify report`: tables, figures and a page from finished or running runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from ..errors import RunError
from ..wire.files import atomic
from .flags import PATH
from .screen import Screen


@click.command("report")
@click.argument("paths", nargs=-1, required=True, type=PATH)
@click.option("--out", default=Path("site"), show_default=True, type=PATH, help="folder to write to")
@click.option("--at", type=float, help="sparsity at which methods are followed over the rounds  [default: 0.9]")
@click.option("--pack", type=PATH, help="also add the runs to this folder, one small JSON file per environment")
@click.option(
    "--fill", type=PATH, multiple=True, help="also fill the marked tables and figures of this Markdown page; repeatable"
)
@click.option(
    "--time", "seconds", type=click.FloatRange(0, min_open=True), help="first time each model, this many seconds"
)
@click.option("--batch", default=128, show_default=True, type=click.IntRange(1), help="images per batch, with --time")
@click.option("--threads", type=click.IntRange(1), help="threads, with --time  [default: all]")
def command(
    paths: tuple[Path, ...],
    out: Path,
    at: float | None,
    pack: Path | None,
    fill: tuple[Path, ...],
    seconds: float | None,
    batch: int,
    threads: int | None,
) -> None:
    """Turn runs into the paper's tables and figures, and into one page that opens from disk.

    PATHS are folders of runs or sweeps, and results files that --pack wrote. Damaged files are left out with a note.

    \b
    fedsparsify report runs/mine                       one run
    fedsparsify report runs/sweep-a runs/sweep-b       many
    fedsparsify report results/                        the runs that come with us
    fedsparsify report runs/sweep-a --pack results/    keep what figures and tables need

    \b
    OUT/index.html      the page                OUT/figures/   SVG and PNG
    OUT/tables/         Markdown, LaTeX (booktabs) and CSV
    """
    from ..report import environments_of, fill_page, load_runs, write_packed, write_site

    console = Screen()
    if at is not None and not 0 <= at < 1:
        raise RunError(f"--at is a sparsity, a fraction in [0, 1). Received: {at:g}.")
    if seconds:
        time_models(paths, seconds, batch, threads, console)
    runs, notes = load_runs(paths)
    environments = environments_of(runs)
    site = write_site(environments, notes, out, at)
    more = [note for page in fill for note in fill_page(page, environments, out / "figures")]
    for note in [*site.notes, *more]:
        console.print(f"Note: {note}", soft_wrap=True)
    if pack:
        kept = load_runs([pack, *paths])[0] if pack.is_dir() else runs  # what it held stays, unless run again
        for path in write_packed(environments_of(kept), pack):
            console.print(f"Packed: {path}, {path.stat().st_size:,} bytes", soft_wrap=True)
    made = {"run": len(runs), "environment": len(environments), "figure": len(site.figures), "table": len(site.tables)}
    console.print(", ".join(f"{count:,} {what}{'' if count == 1 else 's'}" for what, count in made.items()))
    console.print(f"Page: {site.page}", soft_wrap=True)


def time_models(paths: tuple[Path, ...], seconds: float, batch: int, threads: int | None, console: Console) -> None:
    """Time the models of all run folders in turns, and write the figures beside each as inference.json."""
    import numpy as np

    from ..inference import Engine
    from ..inference.timing import compare
    from ..wire.artefact import load_facts

    models = sorted({model for path in paths if path.is_dir() for model in path.rglob("model.fsz")})
    shapes: dict[tuple[int, ...], list[Path]] = {}
    for model in models:
        said = load_facts(model).get("shape")
        if not isinstance(said, list) or not all(type(side) is int and side > 0 for side in said):
            raise RunError(f"{model} does not say the shape of its samples, and cannot be timed.")
        shapes.setdefault(tuple(said), []).append(model)
    for shape, members in shapes.items():
        console.print(f"Timing {len(members)} models, {seconds:g} s each…")
        engines = {str(model): Engine(model, threads) for model in members}
        samples = np.random.default_rng(0).standard_normal((batch, *shape)).astype(np.float32)
        timings = compare({name: engine.run for name, engine in engines.items()}, samples, seconds, seconds / 6, 1)
        for name, timing in timings.items():
            table = asdict(timing) | {"batch": batch, "threads": engines[name].threads, "seconds": seconds}
            with atomic(Path(name).with_name("inference.json")) as file:
                file.write(json.dumps(table).encode())
