"""The figure of Theorem 1: the norm of purged weights, with its bounds and the other terms.

The theorem: (1/T) Σ ‖m ⊙ ∇f‖² ≤ noise + 4/(TηS) · (f(w¹) − f*) + 4/(TηS) · Σ L_p ‖purged‖. The noise term is the same
in every round and its constants cannot be measured, so it is left out. L_p is taken as the largest gradient norm that
the probe saw and f* as the lowest loss: both make the terms smaller than they may be, never larger.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .environments import Environment
from .figures import canvas, drawn, legend_below, show_grid
from .runs import Run
from .style import SEQUENCE, label_of


def draw_theorem(environment: Environment) -> Figure | None:
    """Left: the norms, round by round. Right: the theorem's terms, summed up to each round."""
    runs = [one.first for one in environment.series if one.first.diagnosis]
    chosen = [run for run in runs if run.method == "fedsparsify-global"] or runs
    if not chosen:
        return None
    run = chosen[0]
    figure, (left, right) = canvas(2, 10.4, 4.4)
    norms = {"purged_norm": "thrown away by the purge", "purge_bound": "‖w‖·√(share that went)",
             "paper_bound": "‖w‖·(sₜ − sₜ₋₁), the paper's", "gradient_norm": "masked gradient"}  # fmt: skip
    for i, (key, label) in enumerate(norms.items()):
        _line(left, run.round, run.diagnosis.get(key, []), SEQUENCE[i], label)
    left.set(xlabel="round", ylabel="norm", yscale="log", title="round by round")
    for (label, values), colour in zip(terms(run).items(), SEQUENCE[4:7], strict=False):
        _line(right, run.round, values, colour, label)
    right.set(xlabel="round", yscale="log", title="up to each round: the theorem's sides")
    for panel in (left, right):
        show_grid(panel)
    sparsity = "" if run.sparsity is None else f" at {run.sparsity:g}"
    figure.suptitle(drawn(f"{environment.title}: {label_of(run.method, run.recipe)}{sparsity}"))
    legend_below(figure, [left, right], 3)
    return figure


def _line(panel: Axes, rounds: list[int], values: list[float | None], colour: str, label: str) -> None:
    shown = [(t, value) for t, value in zip(rounds, values, strict=False) if value]
    if shown:
        panel.plot(*zip(*shown, strict=True), color=colour, linewidth=1.4, label=label)


def terms(run: Run) -> dict[str, list[float | None]]:
    """Mean squared gradient, the term of the start and the term of the purges, each up to every round."""
    purged = np.asarray([value or 0.0 for value in run.diagnosis.get("purged_norm", [])], float)
    gradient = np.asarray([value or 0.0 for value in run.diagnosis.get("gradient_norm", [])], float)
    loss = np.asarray(
        [value if value is not None else math.nan for value in run.diagnosis.get("probe_loss", [])], float
    )
    if not len(gradient) or len(purged) != len(gradient) or len(loss) != len(gradient):
        return {}
    rate = float(run.table.get("lr", 1.0)) * _local_steps(run)
    rounds = np.maximum(np.asarray(run.round, float), 1)
    each = np.diff(rounds, prepend=0.0)  # rounds per line: one, or more if results were thinned
    scale = 4 / (rounds * rate)
    found = {
        "left side: mean ‖m ⊙ ∇f‖²": np.cumsum(each * gradient**2) / rounds,
        "right side, start: 4/(tηS)·(f(w¹) − lowest f)": scale * (loss[0] - loss.min()),
        "right side, purges: 4/(tηS)·Σ Lₚ‖purged‖": scale * gradient.max() * np.cumsum(each * purged),
    }
    return {name: [float(value) for value in values] for name, values in found.items()}


def _local_steps(run: Run) -> float:
    """S: mean steps of a client per round."""
    epochs, batch = int(run.table.get("epochs", 1)), int(run.table.get("batch_size", 32))
    held = [sum(row) for row in run.partition or []] or [batch]
    return float(np.mean([epochs * math.ceil(count / batch) for count in held]))
