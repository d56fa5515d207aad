"""`fedsparsify data`: the data sets, and how a split divides one."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ..data import DATASETS, holdings, load_dataset, partition
from ..data.datasets import Source
from ..data.files import cache_folder
from ..errors import ConfigError, nearest
from ..text import plain
from .flags import PATH
from .screen import Screen


@click.command("data")
@click.argument("name", required=False)
@click.option("--download", is_flag=True, help="fetch the data set where it is not on this machine")
@click.option("--split", default=None, help="show which client would hold what: iid, classes:K or dirichlet:ALPHA")
@click.option("--clients", default=10, show_default=True, help="clients to divide among")
@click.option("--seed", default=1990, show_default=True, help="seed of the division")
@click.option("--figure", type=PATH, help="draw the division into this file")
def command(name: str | None, download: bool, split: str | None, clients: int, seed: int, figure: Path | None) -> None:
    """List the data sets, fetch one, or show how a split divides it."""
    console = Screen()
    if name is None:
        _list_data(console)
        return
    if download:
        _source(name).load()
        console.print(f"{plain(name)} is complete and in place.")
    if split is None and figure is None:
        if not download:
            _list_data(console, name)
        return
    dataset = load_dataset(name)
    parts = partition(dataset.y_train, clients, split or "iid", seed)
    counts = holdings(dataset.y_train, parts, dataset.classes)
    table = Table("client", "samples", "classes")
    for client, row in enumerate(counts[:20]):
        held = [plain(dataset.labels[c], 40) if c < len(dataset.labels) else str(c) for c in row.nonzero()[0]]
        table.add_row(str(client), f"{row.sum():,}", ", ".join(held[:10]) + (" …" if len(held) > 10 else ""))
    console.print(table)
    if len(counts) > 20:
        console.print(f"… and {len(counts) - 20:,} more clients")
    if figure:
        from ..report.figures import draw_partition

        draw_partition(counts.tolist(), figure)
        console.print(f"Figure: {figure}", soft_wrap=True)


def _source(name: str) -> Source:
    if name not in DATASETS:
        raise ConfigError(f"there is no data set {name!r}. {nearest(name, DATASETS)}")
    return DATASETS[name]


def _list_data(console: Console, only: str | None = None) -> None:
    table = Table("data set", "what it is", "here?", "how the paper trains it")
    for name, source in {only: _source(only)}.items() if only else DATASETS.items():
        here = "yes" if source.home is None or source.home.present else "no"
        p = source.preset
        momentum = f", momentum {p.momentum:g}" + " Nesterov" * p.nesterov if p.momentum else ""
        how = f"{p.network}, {p.rounds} rounds, batch {p.batch_size}, lr {p.lr:g}{momentum}"
        table.add_row(name, source.about, here, how)
    console.print(table)
    console.print(f"They lie in {cache_folder()} (FEDSPARSIFY_DATA names another folder).", soft_wrap=True)
    console.print("Fetch one: fedsparsify data NAME --download. Your own: FILE.npz or module:function.")
