"""Shipped results: one small JSON file per environment, with the values that tables and figures need.

Settings that all its runs share stand once. Of the rounds it keeps every fifth, the first, the last twenty, and both
sides of every change of the size that is large or comes after a pause; costs are sums up to a round, so that none of
them is lost. The partition is that of the lowest seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..text import plain
from ..wire.files import atomic
from .environments import Environment
from .runs import Layer, Run, checked_partition, checked_timing, checked_views, with_tuples

FORMAT = "fedsparsify-runs/1"
RULE = (
    "every 5th round, the first, the last 20, and both sides of a change of the size by more than a twentieth "
    "or after a round without one"
)
STEP, TAIL, JUMP = 5, 20, 0.05
COLUMNS = ("round", "accuracy", "nonzero", "paper_params", "sent_params")


def kept_rounds(run: Run) -> list[int]:
    """The indices of the rounds that are kept."""
    last, size = len(run.round) - 1, max(run.nonzero)
    changes = [abs(after - before) for before, after in pairwise([run.nonzero[0], *run.nonzero])]
    # Rounds that changed the size, as the one before shows; after a gap in what was packed before, nothing is known.
    moved = [i > 0 and run.round[i] == run.round[i - 1] + 1 and changes[i] > 0 for i in range(last + 1)]
    jumps = [i for i in range(1, last + 1) if changes[i] > JUMP * size or (i > 1 and moved[i] and not moved[i - 1])]
    usual = [i for i, t in enumerate(run.round) if t % STEP == 0 or i == 0 or i > last - TAIL]
    return sorted({*usual, *jumps, *(i - 1 for i in jumps)})


def thinned(run: Run) -> Run:
    """The run with the rounds that are kept."""
    kept = kept_rounds(run)

    def pick(column: Any) -> Any:
        return [column[i] for i in kept] if column is not None else None

    return replace(
        run,
        **{name: pick(getattr(run, name)) for name in COLUMNS},
        sent_bytes=pick(run.sent_bytes),
        epsilon=pick(run.epsilon),
        round_seconds=pick(run.round_seconds),
        diagnosis={key: pick(column) for key, column in run.diagnosis.items()},
        metrics={key: pick(column) for key, column in run.metrics.items()},
        client_views={
            metric: {key: pick(column) for key, column in columns.items()}
            for metric, columns in run.client_views.items()
        },
    )


def pack(environment: Environment) -> dict[str, Any]:
    """The environment as a results file holds it."""
    runs = [replace(thinned(run), name=one.name_of(run)) for one in environment.series for run in one.runs]
    shared = shared_settings(runs)
    holder = min((run for run in runs if run.partition), key=lambda run: run.seed, default=None)
    return {
        "format": FORMAT,
        "rounds_kept": RULE,
        "settings": shared,
        "partition": {"seed": holder.seed, "counts": holder.partition} if holder else None,
        "runs": [_packed(run, shared) for run in runs],
    }


def _packed(run: Run, shared: Mapping[str, object]) -> dict[str, object]:
    own = {key: value for key, value in flat(run.table).items() if key not in shared}
    made: dict[str, object] = {"name": run.name, "settings": own, "total": run.total, "seconds": round(run.seconds, 1)}
    made |= {"model_bytes": run.model_bytes, "layers": [[layer.name, layer.kept, layer.size] for layer in run.layers]}
    made |= {name: getattr(run, name) for name in COLUMNS}
    usual = run.measure == "accuracy"
    made["accuracy"] = [round(value, 5) if usual else _short(value) for value in run.accuracy]
    if run.sent_bytes:
        made["sent_bytes"] = run.sent_bytes
    if run.transfers is not None:
        made["transfers"] = run.transfers
    if run.diagnosis:
        made["diagnosis"] = {key: [_short(value) for value in column] for key, column in run.diagnosis.items()}
    if run.measure != "accuracy":
        made["measure"] = run.measure
    if run.metrics:
        made["metrics"] = {key: [_short(value) for value in column] for key, column in run.metrics.items()}
    if run.client_views:
        made["client_views"] = {
            metric: {key: [_short(value) for value in column] for key, column in columns.items()}
            for metric, columns in run.client_views.items()
        }
    if run.stopped:
        made["stopped"] = run.stopped
    if run.timing:
        made["timing"] = asdict(run.timing)
    return made


def unpack(table: Mapping[str, Any]) -> list[Run]:
    """The runs of a results file."""
    shared, holdings = table["settings"], table.get("partition")
    partition = checked_partition(holdings["counts"]) if holdings else None
    return [_unpacked(made, shared, partition) for made in table["runs"]]


def _unpacked(made: Mapping[str, Any], shared: Mapping[str, object], partition: list[list[int]] | None) -> Run:
    columns = {name: list(made[name]) for name in COLUMNS}
    views = checked_views(made.get("client_views", {}))
    optional = [made.get("sent_bytes"), *made.get("diagnosis", {}).values(), *made.get("metrics", {}).values()]
    optional += [column for one in views.values() for column in one.values()]
    if not columns["round"] or len({len(column) for column in [*columns.values(), *filter(None, optional)]}) != 1:
        raise ValueError(f"the columns of {made['name']} differ in length")
    numbers = [value for column in [*columns.values(), made.get("sent_bytes") or []] for value in column]
    numbers += [made[key] for key in ("total", "model_bytes") if made[key] is not None]
    numbers += [made["transfers"]] if "transfers" in made else []
    if not all(isinstance(value, int | float) for value in numbers):
        raise ValueError(f"the figures of {made['name']} are not numbers")
    run = Run(
        name=plain(made["name"]),
        table=with_tuples(_nested({**shared, **made["settings"]})),
        **columns,
        sent_bytes=made.get("sent_bytes"),
        diagnosis=made.get("diagnosis", {}),
        measure=plain(made.get("measure", "accuracy"), 60),
        metrics={
            plain(key, 60): [_figure(value) for value in column] for key, column in made.get("metrics", {}).items()
        },
        client_views=views,
        total=made["total"],
        seconds=float(made["seconds"]),
        layers=[Layer(str(name), int(kept), int(size)) for name, kept, size in made["layers"]],
        model_bytes=made["model_bytes"],
        partition=partition,
        stopped=plain(made.get("stopped", ""), 300),
        timing=checked_timing(made.get("timing")),
        transfers=made.get("transfers"),
    )
    run.check()
    return run


def write_packed(environments: Sequence[Environment], folder: Path) -> list[Path]:
    """Write one file per environment; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for environment in environments:
        table = pack(environment)
        runs = ",\n  ".join(json.dumps(run, ensure_ascii=False, separators=(",", ":")) for run in table.pop("runs"))
        head = json.dumps(table, ensure_ascii=False, separators=(",", ": "))
        path = folder / f"{environment.slug}.json"
        with atomic(path) as file:
            file.write(f'{head[:-1]},\n "runs": [\n  {runs}\n]}}\n'.encode("utf-8", "backslashreplace"))
        made.append(path)
    return made


def shared_settings(runs: Sequence[Run]) -> dict[str, object]:
    """The settings that all runs have in common, flat."""
    tables = [flat(run.table) for run in runs]
    return {key: value for key, value in tables[0].items() if all(key in t and t[key] == value for t in tables)}


def flat(table: Mapping[str, Any]) -> dict[str, object]:
    """A config's table with keys such as `method.name` in place of the inner table."""
    method = {f"method.{key}": value for key, value in table["method"].items()}
    return {key: value for key, value in table.items() if key != "method"} | method


def _nested(flat: Mapping[str, object]) -> dict[str, object]:
    method = {key.removeprefix("method."): value for key, value in flat.items() if key.startswith("method.")}
    return {key: value for key, value in flat.items() if not key.startswith("method.")} | {"method": method}


def _figure(value: object) -> float | None:
    """A value of a metric; anything else is refused."""
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError("a metric is not a number")


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
