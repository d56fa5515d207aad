"""Figures, from ledger entries and counts. The only file that imports matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..federation.ledger import Entry
from ..wire.files import atomic

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito's palette, told apart by everyone


def draw_curves(history: list[Entry], path: Path, title: str) -> None:
    """Accuracy (left, solid) and surviving parameters (right, dashed) against rounds, as in the paper's figures."""
    figure, left = _canvas(7.0, 4.0)
    rounds = [entry.round for entry in history]
    few = "o" if len(rounds) < 3 else None  # a line through one or two points cannot be seen
    left.plot(rounds, [entry.accuracy for entry in history], color=BLUE, linewidth=1.6, marker=few)
    left.set(xlabel="round", ylim=(0, 1), title=title)
    left.set_ylabel("test accuracy", color=BLUE)
    left.grid(alpha=0.25)
    right = left.twinx()
    survivors = [entry.nonzero for entry in history]
    right.plot(rounds, survivors, color=VERMILION, linewidth=1.6, linestyle="--", marker=few)
    right.set_ylabel("parameters left", color=VERMILION)
    right.set_ylim(0, 1.05 * max(survivors))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right.spines["top"].set_visible(False)
    _save(figure, path)


def draw_partition(counts: list[list[int]], path: Path) -> None:
    """How many samples of each class each client holds."""
    table = np.asarray(counts)  # (clients, classes)
    figure, axes = _canvas(7.0, 3.6)
    image = axes.imshow(table.T, aspect="auto", origin="lower", cmap="cividis", interpolation="nearest", vmin=0)
    axes.set(xlabel="client", ylabel="class", title=f"Who holds what: {table.sum():,} samples, {len(table):,} clients")
    for axis, size in ((axes.xaxis, len(table)), (axes.yaxis, table.shape[1])):
        if size <= 20:
            axis.set_ticks(range(size))
    figure.colorbar(image, ax=axes, label="samples")
    _save(figure, path)


def _canvas(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines["top"].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    with atomic(path) as file:
        figure.savefig(file, format=path.suffix.lstrip(".") or "png", dpi=150)
