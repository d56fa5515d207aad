"""Many runs from one file: every combination of the lists it names, stacked where runs share an environment."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import RunConfig, make_config
from ..data import load_dataset
from ..errors import ConfigError, RunError, nearest
from ..methods import METHODS, method_class
from ..networks import build, layout_of
from ..options import settings
from ..stopping import listening
from .ledger import Entry
from .lock import held
from .run import RunFolder, run
from .together import SharedMachine

# Runs that agree in these train the same network on the same samples in the same steps, and can be stacked.
ENVIRONMENT = (
    *("data", "network", "split", "clients", "participation", "epochs", "batch_size", "lr", "momentum", "nesterov"),
    *("augment", "precision", "keep_optimizer", "device"),
)


@dataclass(frozen=True)
class Planned:
    """One run of a sweep and the name of its folder."""

    name: str
    config: RunConfig


def expand(table: Mapping[str, Any], path: Path | None = None) -> list[Planned]:
    """Every combination of the lists in `[sweep]`, on top of the other settings of the file.

    A list may be of any setting of a run or of a method. A method without that setting takes part once.
    """
    lists = dict(table.get("sweep", {}))
    base = {name: value for name, value in table.items() if name != "sweep"}
    if not lists:
        raise ConfigError(f"a sweep has a table [sweep] of lists, such as seed = [1, 2, 3]. Received: {sorted(table)}.")
    known = {"method", *settings(RunConfig), *(name for kind in METHODS.values() for name in settings(kind))}
    for name, values in lists.items():
        if name not in known and "." not in name:
            raise ConfigError(f"a sweep cannot vary {name!r}. {nearest(name, known)}")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{name} must be a list of values. Received: {values!r}.")
    found: dict[str, Planned] = {}
    for values in itertools.product(*lists.values()):
        planned = _combine(base, dict(zip(lists, values, strict=True)), lists, path)
        found.setdefault(planned.name, planned)
    return list(found.values())


def _combine(base: Mapping[str, Any], choice: dict[str, Any], lists: Mapping[str, Any], path: Path | None) -> Planned:
    method = choice.pop("method", base.get("method", "fedsparsify-global"))
    options = dict(method) if isinstance(method, Mapping) else {"name": method}
    takes = settings(method_class(options["name"]))
    parts = [options["name"].replace(":", "-")] if "method" in lists else []
    table = dict(base)
    for name, value in choice.items():
        if name in settings(RunConfig):
            table[name] = value
        elif name in takes:
            options[name] = value
        else:
            continue
        if len(lists[name]) > 1 or name == "sparsity":
            parts.append(f"{name}-{value}".replace(":", "-"))
    return Planned("_".join(parts) or "run", make_config(table | {"method": options}, path))


def alike(runs: Sequence[Planned]) -> list[list[Planned]]:
    """Runs by environment: those that can be stacked."""
    found: dict[tuple[Any, ...], list[Planned]] = {}
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
    """Play all runs, group after group; what is finished is not played again, what was begun goes on."""
    with held(out), listening():
        _sweep(runs, out, max_models, on_round)


def _sweep(
    runs: Sequence[Planned], out: Path, max_models: int | None, on_round: Callable[[Planned, Entry], None] | None
) -> None:
    """Play all runs in a folder that this process holds."""
    for planned in runs:
        RunFolder(out / planned.name).check(planned.config)  # refuse another configuration before any work
    todo = [planned for planned in runs if not RunFolder(out / planned.name).model.exists()]
    datasets = {name: load_dataset(name) for name in {planned.config.data for planned in todo}}
    for members in alike(todo):
        first = members[0].config
        dataset = datasets[first.data]
        for group in groups(members, max_models or models_that_fit(first, dataset)):
            machine = SharedMachine(first, dataset)
            machine.play([_play(planned, out, dataset, machine, on_round) for planned in group])


def _play(
    planned: Planned,
    out: Path,
    dataset: Any,
    machine: SharedMachine,
    on_round: Callable[[Planned, Entry], None] | None,
) -> Callable[[], None]:
    def play() -> None:
        def seen(entry: Entry) -> None:
            if on_round:
                on_round(planned, entry)

        run(planned.config, out / planned.name, True, seen, dataset, machine)

    return play


def models_that_fit(config: RunConfig, dataset: Any) -> int:
    """How many models to train at a time: half of a GPU's free memory; on a CPU one run, for its caches' sake."""
    if not config.device.startswith("cuda"):
        return config.participants
    module = build(config.network, dataset.shape, dataset.classes, config.seed).eval()
    activations = 0

    def count(_module: object, _inputs: object, output: torch.Tensor) -> None:
        nonlocal activations
        activations += output.numel()

    for child in module.modules():
        child.register_forward_hook(count)
    with torch.no_grad():
        module(torch.from_numpy(dataset.x_train[:1]))
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
