"""`fedsparsify inspect`: what is in a model file."""

from __future__ import annotations

import zlib
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from ..text import plain
from ..wire.artefact import read
from .flags import PATH
from .model_files import model_file
from .screen import Screen
from .units import smaller

BAR = 20  # characters of a full bar


@click.command("inspect")
@click.argument("model", type=PATH)
def command(model: Path) -> None:
    """Show what is in a model file: its layers, how dense each is, and how small it all became."""
    with model_file(model) as file:
        found, facts, _ = read(file)
    console = Screen()
    table = Table("tensor", "shape", "kept", "of", "density", "")
    for spec in found.layout.tensors:
        kept = int(np.count_nonzero(found.host_mask[found.layout.slices[spec.name]]))
        density = kept / spec.size if spec.size else 1.0
        bar = "█" * round(BAR * density) or ("▏" if kept else "")
        table.add_row(
            plain(spec.name), _shape(spec.shape), f"{kept:,}", f"{spec.size:,}", f"{density:7.2%}", bar.ljust(BAR)
        )
    for spec in found.layout.statistics:
        table.add_row(
            plain(spec.name), _shape(spec.shape), f"{spec.size:,}", f"{spec.size:,}", "", "never pruned", style="dim"
        )
    console.print(table)
    dense, size = 4 * found.layout.total, model.stat().st_size
    gzipped = len(zlib.compress(found.host_weights.tobytes()))
    lines = [
        f"{found.nonzero:,} of {found.layout.total:,} values, sparsity {found.sparsity:.4f}",
        f"{size:,} bytes: {smaller(size, dense)} dense float32 ({dense:,}), "
        f"{smaller(size, gzipped)} that gzipped ({gzipped:,})",
        *_told(facts),
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def _shape(shape: tuple[int, ...]) -> str:
    return plain(" × ".join(map(str, shape[:20])) or "–") + " × …" * (len(shape) > 20)


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain(value, 80)


def _told(facts: dict[str, object]) -> list[str]:
    """What the file says of itself, in a line or two."""
    names = ("network", "data", "method", "rounds", "accuracy")
    told = [f"{name} {_fact(facts[name])}" for name in names if name in facts]
    if isinstance(metrics := facts.get("metrics"), dict):
        told += [f"{plain(name, 40)} {_fact(value)}" for name, value in metrics.items()]
    graph = facts.get("graph")
    runs = (
        f"graph of {len(graph)} nodes"
        if isinstance(graph, list)
        else f"no graph: {plain(facts.get('graph_missing', '–'))}"
    )
    return [", ".join([*told, runs])]
