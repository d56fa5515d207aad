"""`fedsparsify data`: the data sets, and how a split divides one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ..data import DATASETS, Dataset, holdings, load_dataset, partition
from ..data.datasets import Source
from ..data.files import cache_folder
from ..data.inputs import arrays_of
from ..errors import ConfigError, nearest
from ..tasks import Targets
from ..text import plain
from .flags import PATH
from .screen import Screen


@click.command("data")
@click.argument("name", required=False)
@click.option("--download", is_flag=True, help="fetch the data set where it is not on this machine")
@click.option(
    "--split",
    default=None,
    help="show which client would hold what: iid, classes:K, dirichlet:ALPHA, dirichlet-equal:ALPHA, column or "
    "module:function",
)
@click.option("--clients", default=10, show_default=True, help="clients to divide among")
@click.option("--seed", default=1990, show_default=True, help="seed of the division")
@click.option("--figure", type=PATH, help="draw the division into this file")
@click.option(
    "--targets",
    type=click.Choice(["classes", "labels", "values"]),
    help="what the targets of your own data are  [default: integers are classes, floats are values]",
)
def command(
    name: str | None,
    download: bool,
    split: str | None,
    clients: int,
    seed: int,
    figure: Path | None,
    targets: Targets | None,
) -> None:
    """List the data sets, describe your own, fetch one, or show how a split divides it."""
    console = Screen()
    if name is None:
        _list_data(console)
        return
    if download:
        _source(name).load()
        console.print(f"{plain(name)} is complete and in place.")
    if split is None and figure is None:
        if name not in DATASETS:
            _describe(console, load_dataset(name, targets))
        elif not download:
            _list_data(console, name)
        return
    dataset = load_dataset(name, targets)
    ids = dataset.clients if split == "column" else None
    count = clients if ids is None else len(set(ids.tolist()))
    parts = partition(dataset.y_train, count, split or "iid", seed, ids)
    counts = holdings(dataset.y_train, parts, dataset.classes)
    table = Table("client", "samples", {"classes": "classes", "labels": "labels", "values": "range"}[dataset.targets])
    for client, part in enumerate(parts[:20]):
        table.add_row(str(client), f"{part.size:,}", _held(dataset, dataset.y_train[part]))
    console.print(table)
    if len(counts) > 20:
        console.print(f"… and {len(counts) - 20:,} more clients")
    if figure:
        from ..report.figures import draw_partition

        draw_partition(counts.tolist(), figure)
        console.print(f"Figure: {figure}", soft_wrap=True)


def _describe(console: Console, dataset: Dataset) -> None:
    """A data set of a user's own: samples, targets, and what is done to raw samples."""
    table = Table(title=plain(dataset.name), show_header=False)
    table.add_row("samples", f"{len(dataset.y_train):,} to train, {len(dataset.y_test):,} to test")
    table.add_row("of shape", plain(dataset.shape))
    table.add_row("type", ", ".join(sorted({str(array.dtype) for array in arrays_of(dataset.x_train)})))
    table.add_row("targets", dataset.about_targets)
    if dataset.preprocessing.divisor != 1:
        table.add_row("raw samples", f"bytes, divided by {dataset.preprocessing.divisor:g}; the model's file says so")
    if dataset.clients is not None:
        table.add_row("clients", f"{len(set(dataset.clients.tolist())):,}; --split column divides by them")
    console.print(table)


def _held(dataset: Dataset, y: NDArray[Any]) -> str:
    """The targets that a client holds: its classes or labels by name, or the range of its values."""
    if dataset.targets == "values":
        return f"{y.min():.4g} … {y.max():.4g}"
    found = np.unique(y) if dataset.targets == "classes" else np.flatnonzero(y.reshape(len(y), -1).any(0))
    held = [plain(dataset.labels[c], 40) if c < len(dataset.labels) else str(c) for c in found]
    return ", ".join(held[:10]) + (" …" if len(held) > 10 else "")


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
