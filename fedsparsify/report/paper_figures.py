"""The paper's figures, from any set of runs. Panels are the splits of one data set and number of clients, IID first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..text import plain
from .client_views import draw_client_views
from .environments import Environment, Series, families_of, slug_of, unique, varied, worded
from .figures import (
    HEIGHT,
    PANEL,
    Column,
    bars_of_holdings,
    canvas,
    class_scale,
    drawn,
    legend_below,
    over_seeds,
    show_grid,
    write,
)
from .lengths import lengths_of
from .paper import printed_rows
from .runs import layer_counts
from .sent_figures import against_bytes, by_length
from .style import SEQUENCE, layer_of, look_of
from .theorem import draw_theorem


def draw_all(environments: Sequence[Environment], folder: Path, at: float | None = None) -> list[str]:
    """Write every figure that these runs can make, as NAME.svg and NAME.png; their names.

    `at` is the sparsity at which methods are followed over the rounds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, caption, figure in figures_of(environments, at):
        write(figure, folder, name, caption)
        made.append(name)
    return made


def figures_of(environments: Sequence[Environment], at: float | None = None) -> Iterator[tuple[str, str, Figure]]:
    """Every figure, its name and what it shows."""
    seen: set[str] = set()
    for family in families_of(environments):
        slug = slug_of(str(family[0].table["data"]).removesuffix(".npz"), str(family[0].table["clients"]))
        slug = unique(slug, seen)
        seen.add(slug)
        yield from _of_family(family, slug, at)
        for environment in family:
            yield from _of_environment(environment)
    for lengths in lengths_of(environments):
        yield f"lengths-{lengths.slug}", f"{lengths.place}: accuracy by number of rounds", by_length(lengths)
    if figure := inference(environments):
        yield "inference", "How many times as fast as the dense model, by sparsity", figure


def _of_family(family: Sequence[Environment], slug: str, at: float | None) -> Iterator[tuple[str, str, Figure]]:
    where, level = f"{family[0].data}, {family[0].clients}", followed(family) if at is None else at
    beside = f" at sparsity {level:g}" if level is not None else ""
    if figure := accuracy_against_sparsity(family):
        yield f"accuracy-sparsity-{slug}", f"{where}: final {family[0].measure} against sparsity", figure
    yield (
        f"rounds-{slug}",
        f"{where}: {family[0].measure} and parameters left by round{beside}",
        progress(family, level),
    )
    yield f"cost-{slug}", f"{where}: {family[0].measure} against what was sent{beside}", cost(family, level)
    if figure := holdings(family):
        yield f"data-{slug}", f"{where}: samples by client and class", figure
    if figure := vote(family):
        yield f"vote-{slug}", f"{where}: FedSparsify-Local by majority vote and by average", figure


def _of_environment(environment: Environment) -> Iterator[tuple[str, str, Figure]]:
    for key, name, letter in (("every", "frequency", "F"), ("exponent", "exponent", "n")):
        if figure := tuning(environment, key, letter):
            yield f"{name}-{environment.slug}", f"{environment.title}: the effect of {letter}", figure
    if figure := against_bytes(environment):
        yield f"bytes-{environment.slug}", f"{environment.title}: {environment.measure} against bytes sent", figure
    if figure := layers(environment):
        yield f"layers-{environment.slug}", f"{environment.title}: density of each layer", figure
    if figure := draw_client_views(environment):
        yield f"clients-{environment.slug}", f"{environment.title}: accuracy at the clients", figure
    if figure := draw_theorem(environment):
        yield f"theorem-{environment.slug}", f"{environment.title}: the terms of Theorem 1", figure


def followed(family: Sequence[Environment]) -> float | None:
    """0.9 as in the paper, or the sparsity that most series have."""
    levels = Counter(one.sparsity for environment in family for one in environment.usual() if one.sparsity is not None)
    if not levels or 0.9 in levels:
        return 0.9 if levels else None
    return max(levels, key=lambda level: (levels[level], level))


def _panels(family: Sequence[Environment], sharey: bool) -> tuple[Figure, list[Axes]]:
    figure, axes = canvas(len(family), max(7.0, PANEL * len(family)), HEIGHT, sharey)
    for one, environment in zip(axes, family, strict=True):
        one.set_title(drawn(environment.title if len(family) == 1 else environment.split))
        show_grid(one)
    if len(family) > 1:
        figure.suptitle(drawn(f"{family[0].data}, {family[0].clients}"))
    return figure, axes


def accuracy_against_sparsity(family: Sequence[Environment]) -> Figure | None:
    """One line per method, with the spread over seeds; dense methods as horizontal lines."""
    whole = [[one for one in environment.usual() if one.complete] for environment in family]
    levels = sorted({one.sparsity for series in whole for one in series if one.sparsity is not None})
    if not levels:
        return None
    place = {level: i for i, level in enumerate(levels)}
    figure, axes = _panels(family, sharey=True)
    for panel, environment, series in zip(axes, family, whole, strict=True):
        for label in dict.fromkeys(one.label for one in series):
            mine = [one for one in series if one.label == label]
            look = look_of(mine[0].method, mine[0].recipe)
            if mine[0].sparsity is None:
                line = "--" if look.dense else ":" if mine[0].dotted else "-."
                panel.axhline(mine[0].mean, color=look.colour, linestyle=line, label=drawn(label))
                panel.axhspan(min(mine[0].finals), max(mine[0].finals), color=look.colour, alpha=0.1, linewidth=0)
                continue
            x = [place[one.sparsity] for one in mine if one.sparsity is not None]
            means = [one.mean for one in mine]
            below = [max(0.0, one.mean - min(one.finals)) for one in mine]  # a mean of equals may lie a bit off
            above = [max(0.0, max(one.finals) - one.mean) for one in mine]
            style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "markersize": 5, "linewidth": 1.4}
            style |= {"zorder": layer_of(mine[0].method), "linestyle": ":" if mine[0].dotted else "-"}
            panel.errorbar(x, means, [below, above], capsize=2.5, elinewidth=0.9, label=drawn(label), **style)
        printed = [(place[row.sparsity], row.accuracy) for row in printed_rows(environment) if row.sparsity in place]
        if printed:
            panel.plot(*zip(*printed, strict=True), "*", markersize=11, color=look_of("fedsparsify-global").colour,
                       markerfacecolor="none", label="the paper's Global")  # fmt: skip
        panel.set(xlabel="sparsity", xticks=range(len(levels)), xticklabels=[f"{level:g}" for level in levels])
    axes[0].set_ylabel(drawn(f"{family[0].runs[0].measured}, last round"))
    legend_below(figure, axes)
    return figure


def _chosen(environment: Environment, level: float | None) -> list[Series]:
    usual = environment.usual()
    return [one for one in usual if one.sparsity in (level, None)] or usual


def _lines(panel: Axes, series: Sequence[Series], x: Column, y: Column, colours: dict[str, str], **style: Any) -> None:
    for one in series:
        across, mean, low, high = over_seeds(one, x, y)
        few = "o" if len(across) < 3 else None
        colour = colours[one.label]
        dotted = one.dotted and "label" not in style
        usual = {"label": drawn(one.label), "linestyle": ":" if dotted else "-", "zorder": layer_of(one.method)}
        panel.plot(across, mean, color=colour, linewidth=1.3, marker=few, **usual | style)
        if len(one.runs) > 1:
            panel.fill_between(across, low, high, color=colour, alpha=0.12, linewidth=0)


def _by_method(series: Sequence[Series]) -> dict[str, str]:
    return {one.label: look_of(one.method, one.recipe).colour for one in series}


def _in_turn(series: Sequence[Series]) -> dict[str, str]:
    labels = dict.fromkeys(one.label for one in series)
    return {label: SEQUENCE[i % len(SEQUENCE)] for i, label in enumerate(labels)}


def _scale(axes: Sequence[Axes], series: Iterable[Series]) -> None:
    """Accuracy from 0 to a little above the highest, the same for all panels."""
    series = list(series)
    if any(run.measure != "accuracy" for one in series for run in one.runs):
        return  # other measures have no natural range
    reached = [value for one in series for run in one.runs for value in run.accuracy if math.isfinite(value)]
    for panel in axes:
        panel.set_ylim(0, min(1.0, 0.05 + max(reached, default=0.95)))


def _two_axes(panel: Axes, series: Sequence[Series], colours: dict[str, str]) -> Axes:
    """Accuracy on the left axis, kept parameters (dashed) on the right."""
    _lines(panel, series, lambda run: run.round, lambda run: run.accuracy, colours)
    return _sizes(panel, series, [colours[one.label] for one in series])


def _sizes(panel: Axes, series: Sequence[Series], colours: Sequence[str]) -> Axes:
    """Kept parameters by round, dashed, on the right axis."""
    right = panel.twinx()
    for one, colour in zip(series, colours, strict=True):
        right.plot(one.first.round, one.first.nonzero, color=colour, linewidth=1.1, linestyle="--", alpha=0.8)
    right.set_ylim(0, 1.04 * max(max(one.first.nonzero) for one in series))
    right.yaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,.0f}")
    right.spines["top"].set_visible(False)
    panel.set_xlabel("round")
    return right


def progress(family: Sequence[Environment], level: float | None) -> Figure:
    """Accuracy and kept parameters against rounds, on two axes."""
    figure, axes = _panels(family, sharey=True)
    for panel, environment in zip(axes, family, strict=True):
        series = _chosen(environment, level)
        right = _two_axes(panel, series, _by_method(series))
    _scale(axes, [one for environment in family for one in _chosen(environment, level)])
    axes[0].set_ylabel(drawn(f"{family[0].runs[0].measured} (solid)"))
    right.set_ylabel("parameters left (dashed)")
    legend_below(figure, axes)
    return figure


def cost(family: Sequence[Environment], level: float | None) -> Figure:
    """Accuracy against the values sent so far, as the paper counts them."""
    figure, axes = _panels(family, sharey=True)
    for panel, environment in zip(axes, family, strict=True):
        series = _chosen(environment, level)
        _lines(panel, series, lambda run: run.mbit(), lambda run: run.accuracy, _by_method(series))
        panel.set(xlabel="sent, Mbit (the paper's count)", xlim=(0, None))
        panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}")
    _scale(axes, [one for environment in family for one in _chosen(environment, level)])
    axes[0].set_ylabel(drawn(family[0].runs[0].measured))
    legend_below(figure, axes)
    return figure


def holdings(family: Sequence[Environment]) -> Figure | None:
    """How samples are divided: one bar per client, stacked by class."""
    held = {one.slug: next((run.partition for run in one.runs if run.partition), None) for one in family}
    known = [(one, counts) for one in family if (counts := held[one.slug])]
    if not known:
        return None
    figure, axes = _panels([environment for environment, _ in known], sharey=True)
    for panel, (_, counts) in zip(axes, known, strict=True):
        bars_of_holdings(panel, counts)
        panel.grid(visible=False)
    axes[0].set_ylabel("samples")
    class_scale(figure, axes, len(known[0][1][0]))
    return figure


def tuning(environment: Environment, key: str, letter: str) -> Figure | None:
    """The effect of one setting of FedSparsify's schedule, against rounds and against values sent."""
    series = varied(environment, key)
    if not series:
        return None
    figure, (left, right) = canvas(2, 2 * PANEL, HEIGHT)
    named = {id(one): f"{letter} = {worded(dict(one.runs[0].table['method'])[key])}" for one in series}
    colours = {named[id(one)]: SEQUENCE[i % len(SEQUENCE)] for i, one in enumerate(series)}
    for one in series:
        name = named[id(one)]
        _lines(
            left, [one], lambda run: run.round, lambda run: run.accuracy, {one.label: colours[name]}, label=drawn(name)
        )
        _lines(
            right,
            [one],
            lambda run: run.mbit(),
            lambda run: run.accuracy,
            {one.label: colours[name]},
            label=drawn(name),
        )
    _sizes(left, series, [*colours.values()]).set_ylabel("parameters left (dashed)")
    left.set_ylabel(drawn(f"{series[0].first.measured} (solid)"))
    right.set(xlabel="sent, Mbit (the paper's count)", xlim=(0, None))
    _scale([left, right], series)
    for panel in (left, right):
        show_grid(panel)
    level = "" if series[0].sparsity is None else f" at {series[0].sparsity:g}"
    figure.suptitle(drawn(f"{environment.title}: {look_of(series[0].method, series[0].recipe).label}{level}"))
    legend_below(figure, [left], 6)
    return figure


def vote(family: Sequence[Environment]) -> Figure | None:
    """FedSparsify-Local with the majority's mask and with the plain average."""
    known = [(environment, pair) for environment in family if len(pair := varied(environment, "aggregate")) > 1]
    if not known:
        return None
    figure, axes = _panels([environment for environment, _ in known], sharey=True)
    for panel, (_, pair) in zip(axes, known, strict=True):
        rules = [str(one.runs[0].table["method"]["aggregate"]) for one in pair]
        right = _two_axes(panel, pair, _in_turn(pair))
        for line, rule in zip(panel.get_lines(), rules, strict=True):
            line.set_label(drawn({"majority": "majority vote", "average": "average"}.get(rule, rule)))
    _scale(axes, [one for _, pair in known for one in pair])
    axes[0].set_ylabel(drawn(f"{family[0].runs[0].measured} (solid)"))
    right.set_ylabel("parameters left (dashed)")
    legend_below(figure, axes)
    return figure


def layers(environment: Environment) -> Figure | None:
    """The density of every layer at each sparsity: FedSparsify-Global, or the methods there are."""
    known = [one for one in environment.usual() if one.first.layers and one.sparsity is not None]
    ours = [one for one in known if one.method == "fedsparsify-global"]
    chosen = [one for one in ours if not one.variant] or ours[:8] or known[:8]
    if not chosen:
        return None
    figure, (axes,) = canvas(width=8.0, height=4.2)
    names = list(layer_counts(chosen[0].first))
    for i, one in enumerate(chosen):
        density = [kept / size for kept, size in layer_counts(one.first).values()]
        colour, label = SEQUENCE[i % len(SEQUENCE)], drawn(f"{one.label} {one.sparsity:g}")
        axes.plot(density, marker="o", markersize=4, linewidth=1.2, color=colour, label=label)
        dead = [layer for layer, share in enumerate(density) if not share]  # a log axis has no place for them
        low = axes.get_xaxis_transform()
        axes.plot(dead, [0.02] * len(dead), "x", color=colour, transform=low, clip_on=False)
    axes.set_xticks(
        range(len(names)), [drawn(plain(name, 40)) for name in names], rotation=60, ha="right", fontsize="x-small"
    )
    axes.set(yscale="log", ylabel="density (share kept)", title=drawn(environment.title))
    show_grid(axes)
    legend_below(figure, [axes], 3)
    return figure


def inference(environments: Sequence[Environment]) -> Figure | None:
    """Throughput over the dense model's: ours in our engine, the paper's in DeepSparse."""
    known = []
    for environment in environments:
        dense = environment.dense()
        timed = [one for one in environment.usual() if one.first.timing and one.sparsity is not None and one.complete]
        timed = [one for one in timed if one.method == "fedsparsify-global"] or timed
        if dense and dense.first.timing and timed:
            known.append((environment, dense.first.timing.items_per_second, timed))
    if not known:
        return None
    figure, axes = canvas(len(known), max(7.0, 3.6 * len(known)), 3.8)
    for panel, (environment, base, timed) in zip(axes, known, strict=True):
        ours = [(one.sparsity, one.first.timing.items_per_second / base) for one in timed if one.first.timing]
        panel.plot(*zip(*ours, strict=True), "o-", color=SEQUENCE[0], label="ours (our engine)")
        printed = printed_rows(environment)
        theirs = [(row.sparsity, row.throughput / printed[0].throughput) for row in printed[1:]]
        if theirs:
            panel.plot(*zip(*theirs, strict=True), "*--", color=SEQUENCE[1], label="the paper (DeepSparse)")
        panel.axhline(1, color="#888888", linewidth=0.8)
        panel.set(xlabel="sparsity", title=drawn(f"{environment.data}, {environment.split}"))
        show_grid(panel)
    axes[0].set_ylabel("throughput, times dense")
    legend_below(figure, axes)
    return figure
