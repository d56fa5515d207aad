"""Many runs from one file: every combination of the lists in its table `[sweep]`.

In: the table of a sweep file. Out: one run folder per combination. Runs that share an environment are trained as one
stack of models.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig, make_config, to_toml
from ..data import Dataset, load_dataset
from ..errors import ConfigError, RunError, nearest
from ..methods import METHODS, Method, check_fits, method_class
from ..networks import build, layout_of, model_of
from ..objects import with_names
from ..options import settings
from ..stopping import listening
from ..tasks import targets_of
from ..text import digest, file_name
from ..training.inputs import as_torch, call
from .environment import build_for, open_device
from .folder import RunFolder
from .ledger import Entry
from .lock import held
from .lockstep import SharedEnvironment
from .prepared import prepared
from .run import run

# Runs that agree in these train the same network on the same samples in the same steps, and can be stacked.
ENVIRONMENT = (
    *("data", "network", "split", "clients", "participation", "epochs", "batch_size", "lr", "momentum", "nesterov"),
    *("optimizer", "weight_decay", "clip_norm", "sam", "label_smoothing", "fixed_norms", "keep_optimizer"),
    *("lr_schedule", "lr_final", "lr_warmup", "lr_drops", "lr_schedule_local", "lr_final_local"),
    *("augment", "precision", "device", "loss"),
)

SHOWN = 6  # names in a message


@dataclass(frozen=True)
class Planned:
    """One run of a sweep and the name of its folder."""

    name: str
    config: RunConfig


def expand(table: Mapping[str, Any], path: Path | None = None) -> list[Planned]:
    """Every combination of the lists in `[sweep]`, on top of the other settings of the file.

    A list may be of any setting of a run or of one of its methods, a user's own included; `method.NAME` is always the
    method's. A method without that setting takes part once.
    """
    base = {name: value for name, value in table.items() if name != "sweep"}
    lists = _lists(table)
    usual = base.get("method", "fedsparsify-global")
    methods = [_options(method) for method in lists.get("method", [usual])]
    _check_names(lists, [method_class(options["name"]) for options in methods])
    chosen: dict[tuple[int | None, ...], tuple[list[str], RunConfig]] = {}
    for places in itertools.product(*(range(len(values)) for values in lists.values())):
        taken = {name: lists[name][place] for name, place in zip(lists, places, strict=True)}
        options = dict(_options(taken.pop("method", usual)))
        made, parts, applied = dict(base), [], set()
        if "method" in lists:
            applied.add("method")
            parts.append(options["name"])
        known = settings(method_class(options["name"]))
        for name, value in taken.items():
            own = name.removeprefix("method.")
            if name in settings(RunConfig):
                made[name] = value
            elif own in known:
                options[own] = value
            else:
                continue
            applied.add(name)
            if len(lists[name]) > 1 or own == "sparsity":
                parts.append(f"{own}-{_worded(value)}")
        key = tuple(place if name in applied else None for name, place in zip(lists, places, strict=True))
        if key not in chosen:
            chosen[key] = parts, make_config(made | {"method": options}, path)
    return _named([*chosen.values()])


def _lists(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of `[sweep]`, by name; those of `[sweep.method]` are called `method.NAME`."""
    lists = table.get("sweep")
    if not isinstance(lists, Mapping) or not lists:
        raise ConfigError(f"a sweep has a table [sweep] of lists, such as seed = [1, 2, 3]. Received: {sorted(table)}.")
    found = {name: values for name, values in lists.items() if name != "method" or not isinstance(values, Mapping)}
    if isinstance(inner := lists.get("method"), Mapping):
        found |= {f"method.{name}": values for name, values in inner.items()}
    for name, values in found.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{name} must be a list of values. Received: {values!r}.")
        found[name] = values = [with_names({name: value})[name] for value in values]
        for place, value in enumerate(values):
            if value in values[:place] and type(value) is type(values[values.index(value)]):
                raise ConfigError(
                    f"sweep.{name} names {value!r} twice: equal values are one run. Received: {values!r}."
                )
    return found


def _options(method: Any) -> Mapping[str, Any]:
    """A method's table, from its name or its table."""
    options = method if isinstance(method, Mapping) else {"name": method}
    if not isinstance(options.get("name"), str):
        raise ConfigError(f"sweep.method must list names, or tables with a name. Received: {method!r}.")
    return options


def _check_names(lists: Mapping[str, object], kinds: Sequence[type[Method]]) -> None:
    """Refuse to vary what neither a run nor one of the sweep's methods has."""
    theirs = {name for kind in kinds for name in settings(kind)}
    known = {"method", *settings(RunConfig), *theirs}
    for name in lists:
        if name in known or (name.startswith("method.") and name.removeprefix("method.") in theirs):
            continue
        having = [ours for ours, kind in METHODS.items() if name.removeprefix("method.") in settings(kind)]
        hint = f"It is a setting of {', '.join(having)}, not of this sweep's methods. " if having else ""
        raise ConfigError(f"a sweep cannot vary {name!r}. {hint}{nearest(name.rpartition('.')[2], known)}")


def _worded(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def _named(chosen: Sequence[tuple[list[str], RunConfig]]) -> list[Planned]:
    """The runs with the names of their folders; those whose names would be the same are told apart by a hash."""
    names = [file_name("_".join(part.replace(":", "-") for part in parts) or "run") for parts, _ in chosen]
    twice = {name for name, count in Counter(names).items() if count > 1}
    made: dict[str, Planned] = {}
    for name, (_, config) in zip(names, chosen, strict=True):
        text = to_toml(config)
        if text in made:
            raise ConfigError(f"a sweep names two runs that are the same: {made[text].name} and {name}.")
        made[text] = Planned(f"{name}-{digest(text)}" if name in twice else name, config)
    return list(made.values())


def selected(runs: Sequence[Planned], patterns: Sequence[str]) -> list[Planned]:
    """The runs whose names fit one of the patterns (`*` and `?` as in a shell); all of them if there is no pattern."""
    fitting = {pattern: [run for run in runs if fnmatchcase(run.name, pattern)] for pattern in patterns}
    for pattern, found in fitting.items():
        if not found:
            names = [run.name for run in runs]
            shown = ", ".join(names[:SHOWN]) + (f", … ({len(names)} runs)" if len(names) > SHOWN else "")
            raise ConfigError(f"no run of this sweep has a name like {pattern!r}. Its runs: {shown}.")
    return [run for run in runs if not patterns or any(run in found for found in fitting.values())]


def alike(runs: Sequence[Planned]) -> list[list[Planned]]:
    """Runs by environment: those that can be stacked."""
    found: dict[tuple[object, ...], list[Planned]] = {}
    for planned in runs:
        found.setdefault(tuple(getattr(planned.config, name) for name in ENVIRONMENT), []).append(planned)
    return list(found.values())


def groups(runs: Sequence[Planned], most: int) -> list[list[Planned]]:
    """Runs that can be stacked, in groups of at most so many models at a time (but at least one run)."""
    made = []
    for members in alike(runs):
        size = max(1, most // members[0].config.participants)
        made += [members[start : start + size] for start in range(0, len(members), size)]
    return made


def sweep(
    runs: Sequence[Planned],
    out: Path,
    max_models: int | None = None,
    on_round: Callable[[Planned, Entry], None] | None = None,
) -> None:
    """Run everything that is not finished, group after group; a run that was begun is resumed."""
    with held(out), listening():
        _sweep(runs, out, max_models, on_round)


def _sweep(
    runs: Sequence[Planned], out: Path, max_models: int | None, on_round: Callable[[Planned, Entry], None] | None
) -> None:
    """Run everything, in a folder that this process holds."""
    for planned in runs:
        RunFolder(out / planned.name).check(planned.config)  # refuse another configuration before any work
    todo = [planned for planned in runs if not RunFolder(out / planned.name).model.exists()]
    for device, precision in sorted({(planned.config.device, planned.config.precision) for planned in todo}):
        open_device(device, precision)
    kinds = {(planned.config.data, targets_of(planned.config.loss)) for planned in todo}
    datasets = {(data, targets): load_dataset(data, targets) for data, targets in kinds}
    for members in alike(todo):
        first = members[0].config
        initial = model_of(build_for(first, prepared(first, datasets[first.data, targets_of(first.loss)])))
        for planned in members:
            check_fits(planned.config.method, initial)
    for members in alike(todo):
        first = members[0].config
        dataset = prepared(first, datasets[first.data, targets_of(first.loss)])
        for group in groups(members, max_models or models_that_fit(first, dataset)):
            environment = SharedEnvironment(first, dataset)
            environment.run_all([_as_call(planned, out, dataset, environment, on_round) for planned in group])


def _as_call(
    planned: Planned,
    out: Path,
    dataset: Dataset,
    environment: SharedEnvironment,
    on_round: Callable[[Planned, Entry], None] | None,
) -> Callable[[], None]:
    def call() -> None:
        def seen(entry: Entry) -> None:
            if on_round:
                on_round(planned, entry)

        run(planned.config, out / planned.name, True, seen, dataset, environment)

    return call


def models_that_fit(config: RunConfig, dataset: Dataset) -> int:
    """How many models to train at a time: half of a GPU's free memory; on a CPU one run, for its caches' sake."""
    if not config.device.startswith("cuda"):
        return config.participants
    module = build(config.network, dataset.shape, dataset.outputs, config.seed).eval()
    activations = 0

    def count(_module: object, _inputs: object, output: object) -> None:
        nonlocal activations
        activations += output.numel() if isinstance(output, torch.Tensor) else 0

    for child in module.modules():
        child.register_forward_hook(count)
    with torch.no_grad():
        call(module, as_torch(dataset.x_train[:1]))
    each = 20 * layout_of(module).total + 8 * activations * config.batch_size
    free, _ = torch.cuda.mem_get_info(config.device)
    return max(config.participants, int(free / 2 / each))


def check_folder(out: Path, runs: Sequence[Planned], resume: bool) -> None:
    """Refuse to mix a new sweep into an old one unless it is to go on."""
    taken = [planned.name for planned in runs if RunFolder(out / planned.name).config.exists()]
    if taken and not resume:
        raise RunError(
            f"{out} already holds {len(taken)} of these runs ({taken[0]}, …). "
            f"Continue with --resume, or choose another --out."
        )
    if out.exists() and not os.access(out, os.W_OK):
        raise RunError(f"{out} cannot be written to.")
