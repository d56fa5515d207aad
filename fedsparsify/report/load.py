"""Runs from the files they left: a run's folder, a sweep's, or a shipped results file.

Whatever is damaged becomes a note, and what is left of it is shown: a report must never be lost to one broken line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .. import toml
from ..errors import RunError, WireError
from ..text import plain
from ..wire.artefact import read
from .clients import client_rows
from .packed import unpack
from .runs import DIAGNOSTICS, VIEWS, Layer, Run, checked_partition, checked_timing, with_tuples

T = TypeVar("T")

MAX_COUNT = 2**53
COUNTS = ("round", "nonzero", "paper_params", "download_params", "upload_params")


def load_runs(paths: Sequence[Path], running: bool = False) -> tuple[list[Run], list[str]]:
    """The runs in folders and files, and notes on what could not be read; a later run replaces an equal one.

    Of runs that may be `running`, no note says that they stopped.
    """
    notes: list[str] = []
    found: dict[str, Run] = {}
    for path in paths:
        if not path.exists():
            raise RunError(f"there is no {path}. Name a run's folder, a sweep's, or a results file.")
        runs = read_results(path, notes) if path.is_file() else _in_folder(path, notes)
        if not runs:
            notes.append(f"{path} holds no run.")
        for run in runs:
            if run.identity in found:
                notes.append(f"{run.name} repeats {found[run.identity].name}; the later one is shown.")
            found[run.identity] = run
    for run in found.values():
        if not run.complete and not running:
            notes.append(f"{run.name} stopped after round {run.round[-1]} of {run.rounds}.")
    return list(found.values()), [plain(note, 500) for note in notes]


def _in_folder(folder: Path, notes: list[str]) -> list[Run]:
    if (folder / "config.toml").exists() or (folder / "history.jsonl").exists():
        run = read_run(folder, folder.resolve().name, notes)
        return [run] if run else []
    runs = []
    for config in sorted(folder.rglob("config.toml")):
        name = f"{folder.resolve().name}/{config.parent.relative_to(folder)}"
        if run := read_run(config.parent, name, notes):
            runs.append(run)
    for file in sorted(folder.glob("*.json")):
        runs += read_results(file, notes, among_others=True)
    return runs


def read_run(folder: Path, name: str, notes: list[str]) -> Run | None:
    """The run in a folder; None, and a note, if there is nothing to show."""
    try:
        table = with_tuples(toml.loads((folder / "config.toml").read_text("utf-8")))
        table["method"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"{name} cannot be shown: its config.toml cannot be read ({_reason(error)}).")
        return None
    lines = _history(folder / "history.jsonl", name, notes)
    if not lines:
        notes.append(f"{name} cannot be shown: no round of it is on disk yet.")
        return None
    measure = _headline(lines[0])
    further = [key for key in _metrics(lines[-1]) if key != measure]
    total, layers, size = _model(folder / "model.fsz", name, notes)
    sent_bytes = None
    if all(isinstance(line.get(key), int) for line in lines for key in ("download_bytes", "upload_bytes")):
        sent_bytes = _summed(lines, "download_bytes", "upload_bytes")
    run = Run(
        name=plain(name),
        table=table,
        round=[int(line["round"]) for line in lines],
        accuracy=[float(_measured(line, measure)) for line in lines],
        measure=plain(measure, 60),
        metrics={plain(key, 60): [_number(_metrics(line).get(key)) for line in lines] for key in further},
        nonzero=[int(line["nonzero"]) for line in lines],
        paper_params=_summed(lines, "paper_params"),
        sent_params=_summed(lines, "download_params", "upload_params"),
        sent_bytes=sent_bytes,
        diagnosis={key: [_number(line.get(key)) for line in lines] for key in DIAGNOSTICS if key in lines[-1]},
        client_views=_views(lines),
        total=total or _total(lines),
        seconds=sum(_number(line.get("seconds")) or 0.0 for line in lines),
        round_seconds=[_number(line.get("seconds")) for line in lines],
        layers=layers,
        model_bytes=size,
        partition=_checked(checked_partition, folder / "partition.json", name, notes),
        stopped=plain(lines[-1].get("stopped") or "", 300),
        timing=_checked(checked_timing, folder / "inference.json", name, notes),
        epsilon=_epsilons(lines),
        clients=client_rows(lines),
        transfers=_transfers(lines),
    )
    try:
        run.check()
    except (TypeError, ValueError, OverflowError) as error:
        notes.append(f"{name} cannot be shown: its settings are not those of a run ({error}).")
        return None
    return run


def _transfers(lines: list[dict[str, Any]]) -> int | None:
    """How often a model was sent, where the history of a run over a network says it of every round."""
    counts = [line.get(key) for line in lines for key in ("asked", "answered") if line["round"]]
    known = [count for count in counts if type(count) is int and 0 <= count <= MAX_COUNT]
    return sum(known) if counts and len(known) == len(counts) else None


def _history(path: Path, name: str, notes: list[str]) -> list[dict[str, Any]]:
    """The lines before the first damaged one."""
    lines: list[dict[str, Any]] = []
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return lines
    for number, line in enumerate(text.splitlines(), 1):
        try:
            made = json.loads(line)
            if not all(isinstance(made[key], int) and 0 <= made[key] < MAX_COUNT for key in COUNTS):
                raise TypeError
            value = _measured(made, _headline(lines[0] if lines else made))
            if not isinstance(value, int | float):
                raise TypeError
            float(value)
            if lines and made["round"] <= lines[-1]["round"]:
                raise ValueError
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            notes.append(f"{name}: line {number} of history.jsonl is cut off or damaged; what precedes it is shown.")
            break
        lines.append(made)
    return lines


def _metrics(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics of a round beside its accuracy."""
    found = line.get("metrics", {})
    return found if isinstance(found, dict) else {}


def _headline(line: Mapping[str, Any]) -> str:
    """What a round is measured by: accuracy; without it the first metric; without any the loss."""
    if line.get("accuracy") is not None:
        return "accuracy"
    return next((key for key, value in _metrics(line).items() if isinstance(value, int | float)), "loss")


def _measured(line: Mapping[str, Any], measure: str) -> Any:
    return line[measure] if measure in ("accuracy", "loss") else _metrics(line)[measure]


def _epsilons(lines: Iterable[Mapping[str, Any]]) -> list[float] | None:
    """ε up to each round; None: the run is not private."""
    found = [_number(line.get("epsilon")) for line in lines]
    return [value for value in found if value is not None] if None not in found else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 2**1023 else None


def _views(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """What clients measured: per metric the columns of `VIEWS`."""
    rows = [views if isinstance(views := line.get("client_views"), dict) else {} for line in lines]
    found = {
        plain(metric, 60): {
            key: [_number(row[metric].get(key)) if isinstance(row.get(metric), dict) else None for row in rows]
            for key in VIEWS
        }
        for metric in dict.fromkeys(metric for row in rows for metric in row)
    }
    return {metric: columns for metric, columns in found.items() if any(value is not None for value in columns["mean"])}


def _summed(lines: Iterable[Mapping[str, Any]], *keys: str) -> list[int]:
    return [int(value) for value in np.cumsum([sum(int(line[key]) for key in keys) for line in lines])]


def _model(path: Path, name: str, notes: list[str]) -> tuple[int | None, list[Layer], int | None]:
    """Values of the dense model, its layers and the file's size; empty if there is no model yet."""
    if not path.exists():
        return None, [], None
    try:
        model = read(path)[0]
    except WireError as error:
        notes.append(f"{name}: {error}")
        return None, [], None
    slices = model.layout.slices
    layers = [
        Layer(spec.name, int(np.count_nonzero(model.mask[slices[spec.name]])), spec.size)
        for spec in model.layout.tensors
    ]
    return model.layout.total, layers, path.stat().st_size


def _total(lines: Sequence[Mapping[str, Any]]) -> int | None:
    """The dense model's values, from a round that pruned nothing."""
    dense = [int(line["nonzero"]) for line in lines if line.get("sparsity") == 0]
    return dense[0] if dense else None


def _checked(check: Callable[[object], T], path: Path, name: str, notes: list[str]) -> T | None:
    """The content of a JSON file, if it exists and passes `check`."""
    try:
        return check(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        notes.append(f"{name}: {path.name} cannot be read ({_reason(error)}).")
        return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def read_results(path: Path, notes: list[str], among_others: bool = False) -> list[Run]:
    """The runs of a results file. Other JSON is an error, or is skipped with `among_others`."""
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({_reason(error)}).")
        return []
    if not isinstance(table, dict) or not str(table.get("format", "")).startswith("fedsparsify-runs/"):
        if among_others:
            return []
        raise RunError(f"{path} is not a results file of ours: it names no format fedsparsify-runs.")
    try:
        return unpack(table)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        notes.append(f"{path.name} is damaged, and nothing of it is shown ({_reason(error)}).")
        return []
