"""Figures of accuracy against what a run sent: by sparsity, and by number of rounds.

In: an environment, or environments that differ in their rounds. Out: a matplotlib figure.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..recipes import PAPER
from .authors import reported
from .environments import Environment
from .figures import HEIGHT, PANEL, canvas, drawn, legend_below, show_grid
from .lengths import Lengths, values_sent
from .style import layer_of, look_of
from .traded import lines_of, megabytes

SPAN = 0.4  # of accuracy: what is shown below the highest point


def against_bytes(environment: Environment) -> Figure | None:
    """Accuracy of the last ten rounds against all bytes sent, a line per method over its sparsities.

    Stars are what a method's authors report, at the bytes of our run of it. Points far below the best are named at the
    lower edge, so that the others are told apart.
    """
    lines = lines_of(environment)
    if len({label for label, series in lines.items() if series[0].sparsity is not None}) < 2:
        return None
    figure, [panel] = canvas(1, 7.0, HEIGHT)
    theirs = reported(environment)
    points: list[tuple[float, float, str]] = []
    for label, series in lines.items():
        look = look_of(series[0].method, series[0].recipe)
        x, y = [megabytes(one) for one in series], [one.settled for one in series]
        points += [(across, up, look.colour) for across, up in zip(x, y, strict=True)]
        (line,) = panel.plot(x, y, color=look.colour, marker=look.marker, label=drawn(label))
        line.set(linestyle=":" if series[0].dotted else "-", zorder=layer_of(series[0].method))
        line.set_fillstyle("none" if series[0].dotted else "full")
        stars = [(at, theirs.get((one.method, one.sparsity))) for at, one in zip(x, series, strict=True)]
        for at, accuracy in stars if series[0].recipe == PAPER else ():
            if accuracy is not None:
                points.append((at, accuracy, look.colour))
                panel.plot(at, accuracy, "*", color=look.colour, markersize=13, label="the authors'", zorder=6)
    panel.set(xscale="log", xlabel="sent both ways, MB")
    panel.set_title(drawn(environment.title), fontsize="medium" if len(environment.title) > 55 else "large")
    _plain_numbers(panel)
    if environment.measure == "accuracy":
        _name_the_lowest(panel, points)
    panel.set_ylabel(drawn(f"{environment.runs[0].measured}, last ten rounds"))
    show_grid(panel)
    legend_below(figure, [panel])
    return figure


def _name_the_lowest(panel: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Let the axis begin `SPAN` below the highest point; what is lower is an arrow at its edge with its value."""
    least = max(y for _, y, _ in points) - SPAN
    lower = [point for point in points if point[1] < least]
    if lower:
        panel.set_ylim(bottom=least)
    for x, y, colour in lower:
        text = f"{y:.2f} ↓"
        panel.annotate(
            text, (x, least), (0, 4), textcoords="offset points", ha="center", color=colour, fontsize="small"
        )


def _plain_numbers(panel: Axes) -> None:
    """A log axis with 1, 2 and 5 times powers of ten, written out."""
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")


def by_length(lengths: Lengths) -> Figure:
    """Accuracy of the last ten rounds against what a run sent, a line per method over its numbers of rounds.

    Methods with one number of rounds are points.
    """
    known = {points[0].sparsity for points in lengths.curves}
    levels: list[float | None] = [*sorted(level for level in known if level is not None)] or [None]
    figure, axes = canvas(len(levels), max(7.0, PANEL * len(levels)), HEIGHT, sharey=True)
    for panel, level in zip(axes, levels, strict=True):
        curves = [points for points in lengths.curves if points[0].sparsity in (level, None)]
        for points in [*curves, *([one] for one in lengths.beside(level))]:
            one, x, y = points[0], [values_sent(one) for one in points], [one.settled for one in points]
            look = look_of(one.method, one.recipe)
            (line,) = panel.plot(x, y, color=look.colour, marker=look.marker, label=drawn(one.label))
            line.set(linestyle="-" if len(points) > 1 else "", zorder=layer_of(one.method))
            line.set_fillstyle("none" if one.dotted else "full")
            for point, across, up in zip(points, x, y, strict=True) if len(points) > 1 else ():
                panel.annotate(f"{point.first.rounds}", (across, up), (0, 6), textcoords="offset points", ha="center")
        title = lengths.place if level is None else f"{lengths.place}, sparsity {level:g}"
        panel.set(xscale="log", xlabel="million values sent both ways", title=drawn(title))
        _plain_numbers(panel)
        show_grid(panel)
    axes[0].set_ylabel(drawn(f"{lengths.environments[0].runs[0].measured}, last ten rounds"))
    legend_below(figure, axes)
    return figure
