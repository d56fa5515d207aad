"""Shared by all figures: the canvas, one line from runs over seeds, and saving.

This file, `paper_figures`, `client_views` and `theorem` are the only ones that import matplotlib.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from ..text import plain
from ..wire.files import atomic
from .environments import Series
from .runs import Run

PANEL, HEIGHT = 5.2, 4.4  # inches of one panel
BLUE, VERMILION = "#0072B2", "#D55E00"  # from Okabe and Ito's palette for colour-blind readers
LETTER, HANDLE, ROW = 0.056, 0.5, 0.18  # inches in a legend: per letter of its small type, beside each name, per row
SVG = {"svg.hashsalt": "fedsparsify", "svg.fonttype": "none"}  # the same figure is the same bytes; text stays text


def show_grid(axes: Axes) -> None:
    """A faint grid."""
    axes.grid(alpha=0.25, linewidth=0.6)


def canvas(panels: int = 1, width: float = 7.0, height: float = 4.0, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with some panels side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False, sharey=sharey)[0]
    for one in axes:
        one.spines["top"].set_visible(False)
    return figure, list(axes)


def write(figure: Figure, folder: Path, name: str, caption: str = "") -> None:
    """Save a figure as SVG and PNG, with a description as its title."""
    for kind in ("svg", "png"):
        save(figure, folder / f"{name}.{kind}", caption)


def save(figure: Figure, path: Path, caption: str = "") -> None:
    """Save a figure in the format of its suffix."""
    kind = path.suffix.lstrip(".") or "png"
    facts = {"Title": caption} | ({"Date": None} if kind == "svg" else {})
    with matplotlib.rc_context(SVG), atomic(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # for letters that the font lacks
        figure.savefig(file, format=kind, dpi=150, metadata=facts)


def drawn(text: str) -> str:
    """Text that matplotlib draws as it is: no formula after a dollar, no hidden label after an underscore."""
    return plain(text, 150).replace("$", r"\$").replace("_", " _", text.startswith("_"))


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One legend for all panels, below them, with each name once, in at most so many columns as fit."""
    named: dict[str, Artist] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        columns = fitting_columns(list(named), columns, figure.get_figwidth())
        rows = -(-len(named) // columns)
        figure.set_figheight(figure.get_figheight() + ROW * max(0, rows - 3))
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize="small"
        )


def fitting_columns(names: Sequence[str], most: int, width: float) -> int:
    """How many columns of a legend fit a width in inches; names go down the columns."""
    for count in range(min(most, len(names)), 1, -1):
        longest = [max(map(len, column)) for column in np.array_split(names, count)]
        if sum(LETTER * length + HANDLE for length in longest) <= width:
            return count
    return 1


Column = Callable[[Run], Sequence[float]]


def over_seeds(one: Series, x: Column, y: Column) -> tuple[list[float], list[float], list[float], list[float]]:
    """Mean, lowest and highest of the runs at each round that any of them has; x is their mean too."""
    at: dict[int, list[tuple[float, float]]] = {}
    for run in one.runs:
        for t, across, up in zip(run.round, x(run), y(run), strict=True):
            at.setdefault(t, []).append((across, up))
    points = [np.asarray(at[t], float) for t in sorted(at)]
    return (
        [float(p[:, 0].mean()) for p in points],
        [float(p[:, 1].mean()) for p in points],
        [float(p[:, 1].min()) for p in points],
        [float(p[:, 1].max()) for p in points],
    )


def draw_curves(run: Run, path: Path, title: str) -> None:
    """Accuracy or another measure (left, solid) and kept parameters (right, dashed) against rounds, as in the paper."""
    figure, (left,) = canvas()
    few = "o" if len(run.round) < 3 else None  # a line through one or two points cannot be seen
    left.plot(run.round, run.accuracy, color=BLUE, linewidth=1.6, marker=few)
    if view := run.client_views.get(run.measure):
        points = [(t, worst) for t, worst in zip(run.round, view["worst"], strict=True) if worst is not None]
        left.plot(
            *zip(*points, strict=True), color=BLUE, linewidth=1.2, linestyle=":", marker=few, label="worst client"
        )
        left.legend(loc="lower right", frameon=False)
    left.set(xlabel="round", title=drawn(title))
    if run.measure == "accuracy":
        left.set_ylim(0, 1)
    left.set_ylabel(drawn(run.measured), color=BLUE)
    show_grid(left)
    right = left.twinx()
    right.plot(run.round, run.nonzero, color=VERMILION, linewidth=1.6, linestyle="--", marker=few)
    right.set_ylabel("parameters left", color=VERMILION)
    right.set_ylim(0, 1.05 * max(run.nonzero))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    right.spines["top"].set_visible(False)
    save(figure, path)


def draw_partition(counts: Sequence[Sequence[int]], path: Path) -> None:
    """Draw how many samples of each class each client holds."""
    figure, (axes,) = canvas(height=3.6)
    bars_of_holdings(axes, counts)
    table = np.asarray(counts)
    axes.set_title(f"Who holds what: {table.sum():,} samples, {len(table):,} clients")
    axes.set_ylabel("samples")
    class_scale(figure, [axes], table.shape[1])
    save(figure, path)


def bars_of_holdings(axes: Axes, counts: Sequence[Sequence[int]]) -> None:
    """One bar per client, stacked by class; colours run from the first class to the last."""
    table = np.asarray(counts)  # (clients, classes)
    tops = table.cumsum(1)
    clients, classes = table.nonzero()
    left, top = clients - 0.43, tops[clients, classes]
    low = top - table[clients, classes]
    corners = np.stack([left, low, left, top, left + 0.86, top, left + 0.86, low], 1).reshape(-1, 4, 2)
    shades = matplotlib.colormaps["viridis"](classes / max(1, table.shape[1] - 1))
    axes.add_collection(PolyCollection(list(corners), facecolors=shades, linewidths=0))
    axes.set_ylim(0, 1.03 * max(1, tops[:, -1].max()))
    axes.set(xlabel="client", xlim=(-0.6, len(table) - 0.4))
    if len(table) <= 20:
        axes.set_xticks(range(len(table)))


def class_scale(figure: Figure, axes: Sequence[Axes], classes: int) -> None:
    """The colours of the classes, beside the bars."""
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.BoundaryNorm(np.arange(classes + 1) - 0.5, 256), "viridis")
    ticks = range(classes) if classes <= 12 else range(0, classes, max(1, classes // 10))
    figure.colorbar(scale, ax=list(axes), label="class", ticks=list(ticks))
