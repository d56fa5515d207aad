"""One page that opens from disk: styles, scripts and all values are inside it; it loads nothing."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..tasks import higher_is_better
from ..text import plain
from ..toml import assignment
from ..wire.files import atomic
from .environments import Environment, Series, varied
from .packed import flat, shared_settings, thinned
from .paper import printed_rows, source
from .runs import Run, layer_counts
from .style import LOOKS, SEQUENCE, SEQUENCE_DARK, look_of

ASSETS = Path(__file__).parent / "assets"
MANY = 40_000  # rounds on one page; with more, every run is thinned as results files are
MOST_CLIENTS = 200  # whose holdings and updates the page shows


def write_page(environments: Sequence[Environment], notes: Sequence[str], path: Path) -> None:
    """Write the page of these runs."""
    with atomic(path) as file:
        file.write(page_of(environments, notes).encode("utf-8", "backslashreplace"))  # which is JSON's own escape


def page_of(environments: Sequence[Environment], notes: Sequence[str]) -> str:
    """The page's text."""
    return page_text(page_values(environments, notes))


def page_values(environments: Sequence[Environment], notes: Sequence[str]) -> dict[str, Any]:
    """All that a page shows, as JSON can hold it."""
    from .. import __version__

    many = sum(len(run.round) for environment in environments for run in environment.runs) > MANY
    found = {
        "version": __version__,
        "title": title_of(environments),
        "sources": "the files that the runs left",
        "paper": f"The paper: {source()}" if any(printed_rows(one) for one in environments) else "",
        "notes": [plain(note, 500) for note in notes],
        "looks": {method: asdict(look) for method, look in LOOKS.items()},
        "sequence": SEQUENCE,
        "sequenceDark": SEQUENCE_DARK,
        "environments": [_environment(one, many) for one in environments],
        "live": None,
    }
    values: dict[str, Any] = _finite(found)
    return values


def page_text(values: Mapping[str, Any]) -> str:
    """The page with these values inside. One with `live` may ask its own server for new ones; others ask nobody."""
    parts = {
        "title": html.escape(str(values["title"])),
        "css": (ASSETS / "page.css").read_text(),
        "js": (ASSETS / "chart.js").read_text() + (ASSETS / "page.js").read_text(),
        "data": json.dumps(values, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "connect": "; connect-src 'self'" if values["live"] else "",
    }
    # In one pass, so that inserted text is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], (ASSETS / "page.html").read_text())


def title_of(environments: Sequence[Environment]) -> str:
    """The title of the page."""
    if len(environments) != 1:
        return "fedsparsify: report"
    only = environments[0]
    if len(only.runs) == 1:
        sparsity = "" if only.runs[0].sparsity is None else f" at {only.runs[0].sparsity:g}"
        return f"{only.series[0].label}{sparsity} on {only.data}"
    return only.title


def _environment(environment: Environment, many: bool) -> dict[str, object]:
    runs = [thinned(run) if many else run for run in environment.runs]
    place = {id(run): i for i, run in enumerate(environment.runs)}
    shared = shared_settings(runs)
    held = next((run.partition for run in runs if run.partition), None)
    series, dense = environment.series, environment.dense()
    sets = {"methods": environment.usual(), "F": varied(environment, "every"), "n": varied(environment, "exponent")}
    sets["majority or average"] = varied(environment, "aggregate")
    return {
        "slug": environment.slug,
        "title": environment.title,
        "data": environment.data,
        "split": environment.split,
        "clients": environment.clients,
        "network": plain(environment.table.get("network", "")),
        "rounds": environment.runs[0].rounds,
        "measure": environment.measure,
        "higher": higher_is_better(environment.measure),
        "measured": " or ".join(dict.fromkeys(run.measured for run in runs)),
        "total": environment.total,
        "levels": sorted({one.sparsity for one in series if one.sparsity is not None}),
        "settings": _lines(shared),
        "keys": list(flat(environment.table)),
        "partition": held[:MOST_CLIENTS] if held else None,
        "holders": len(held) if held else 0,
        "paper": [asdict(row) for row in printed_rows(environment)],
        "series": [_series(one, place) for one in series],
        "sets": {name: [series.index(one) for one in chosen] for name, chosen in sets.items() if chosen},
        "dense": next((i for i, one in enumerate(series) if one is dense), None),
        "runs": [_run(run, shared) for run in runs],
    }


def _series(one: Series, place: dict[int, int]) -> dict[str, object]:
    look = look_of(one.method, one.recipe)
    drawn = {"colour": look.colour, "dark": look.dark, "marker": look.marker, "dense": look.dense}
    runs = [place[id(run)] for run in one.runs]
    return {"label": one.label, "method": look.label, "sparsity": one.sparsity, "runs": runs, **drawn}


def _run(run: Run, shared: dict[str, object]) -> dict[str, object]:
    return {
        "name": run.name,
        "seed": run.seed,
        "complete": run.complete,
        "stopped": run.stopped,
        "exchanges": run.exchanges,
        "round": run.round,
        "accuracy": run.accuracy,
        "nonzero": run.nonzero,
        "mbit": [_short(value) for value in run.mbit()],
        "sent": [_short(value / 1e6) for value in run.sent_params],
        "paper": _short(run.paper_params[-1] / 1e6),
        "bytes": [_short(value / 1e6) for value in run.sent_bytes] if run.sent_bytes else None,
        "layers": [[plain(name, 80), kept, size] for name, (kept, size) in layer_counts(run).items()],
        "empty": [plain(layer.name, 80) for layer in run.layers if layer.size and not layer.kept],
        "modelBytes": run.model_bytes,
        "seconds": run.seconds,
        "timing": asdict(run.timing) if run.timing else None,
        "diagnosis": run.diagnosis,
        "views": run.client_views,
        "metrics": run.metrics,
        "epsilon": run.epsilon,
        "clients": [asdict(row) for row in run.clients[:MOST_CLIENTS]],
        "allClients": len(run.clients),
        "settings": _lines({key: value for key, value in flat(run.table).items() if key not in shared}),
    }


def _lines(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as lines of a config file, which the page joins again."""
    return {key: _line(key.removeprefix("method."), value) for key, value in settings.items()}


def _line(key: str, value: object) -> str:
    try:
        return assignment(key, value)
    except ConfigError as error:
        return f"# {plain(error)}"


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _finite(value: object) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
