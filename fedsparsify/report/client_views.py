"""The figure of the clients' own view: the mean over clients, its spread, and the worst client, by round."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .environments import Environment
from .figures import canvas, drawn, legend_below, show_grid
from .runs import Run
from .style import SEQUENCE


def draw_client_views(environment: Environment) -> Figure | None:
    """Accuracy on the samples that clients hold out, one colour per series; None where no client evaluates."""
    chosen = [one for one in environment.usual() if "accuracy" in one.first.client_views]
    if not chosen:
        return None
    figure, (panel,) = canvas(height=4.6)
    for place, one in enumerate(chosen):
        sparsity = "" if one.sparsity is None else f" {one.sparsity:g}"
        _draw(panel, one.first, SEQUENCE[place % len(SEQUENCE)], f"{one.label}{sparsity}")
    panel.set(xlabel="round", ylabel="accuracy at the clients", title=drawn(environment.title))
    show_grid(panel)
    legend_below(figure, [panel], 2)
    return figure


def _draw(panel: Axes, run: Run, colour: str, label: str) -> None:
    """Mean over clients with a band of one standard deviation, and the worst client dotted."""
    view = run.client_views["accuracy"]
    rows = [row for row in zip(run.round, view["mean"], view["worst"], view["spread"], strict=True) if None not in row]
    if not rows:
        return
    t, mean, worst, spread = ([float(value or 0) for value in column] for column in zip(*rows, strict=True))
    low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
    few = "o" if len(t) < 3 else None
    panel.fill_between(t, low, high, color=colour, alpha=0.15, linewidth=0)
    panel.plot(t, mean, color=colour, linewidth=1.6, marker=few, label=drawn(f"{label}: mean ± standard deviation"))
    panel.plot(t, worst, color=colour, linewidth=1.2, linestyle=":", marker=few, label=drawn(f"{label}: worst client"))
