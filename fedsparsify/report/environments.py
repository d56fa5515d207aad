"""Runs grouped by environment, and within one by method, variant and sparsity, with all seeds together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias

from ..data import preset_of
from ..methods import METHODS
from ..options import settings
from ..recipes import LEADERS, PAPER, RECIPES, Place, candidates, fit
from ..text import plain, shortened
from ..training.settings import Training
from .runs import PLACE, Run
from .style import label_of, look_of, rank_of

# Settings of training that make a series of its own if a run's value is not that of most runs of its method.
TRAINING = (
    *("batch_size", "optimizer", "lr", "momentum", "nesterov", "weight_decay", "clip_norm", "sam", "label_smoothing"),
    *("lr_schedule", "lr_final", "lr_warmup", "lr_drops", "lr_schedule_local", "lr_final_local"),
    *("augment", "precision", "fixed_norms", "keep_optimizer", "wire_precision", "loss", "evaluate", "holdout"),
)
# What runs that are older than a setting trained with.
BEFORE = {name: setting.default for name, setting in settings(Training).items()} | Training().defaults()
BEFORE |= {"evaluate": "server", "holdout": 0.0}
TUNED = {"every": "F", "exponent": "n", "aggregate": ""}  # settings that the paper's appendix varies, and their letters
LAST = 10  # rounds at the end of a run, whose mean is steadier than the last one
NAMES = {"fashion-mnist": "FashionMNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "Digits"}

Variant: TypeAlias = tuple[tuple[str, object], ...]  # names and values of settings


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seeds alone."""

    method: str
    recipe: str
    variant: Variant  # settings that are not the usual ones of method and recipe
    sparsity: float | None
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The name of method and recipe, with the settings that are not usual."""
        special = ", ".join(_described(name, value) for name, value in self.variant)
        return label_of(self.method, self.recipe) + (f" ({plain(special, 100)})" if special else "")

    @property
    def dotted(self) -> bool:
        """Whether figures draw it with dots, because another series has its colour."""
        plain = look_of(self.method).colour
        return bool(self.variant) or (self.recipe != PAPER and look_of(self.method, self.recipe).colour == plain)

    def order(self) -> tuple[object, ...]:
        """Place in legends and tables: by method and recipe, usual settings first, then by sparsity."""
        recipe = (self.recipe != PAPER, self.recipe)
        return rank_of(self.method), recipe, len(self.variant), str(self.variant), self.sparsity or 0.0

    def name_of(self, run: Run) -> str:
        """A run in words, independent of its folder."""
        sparsity = "" if self.sparsity is None else f" {self.sparsity:g}"
        return f"{self.label}{sparsity}, seed {run.seed}"

    @property
    def complete(self) -> list[Run]:
        """The finished runs."""
        return [run for run in self.runs if run.complete]

    @cached_property
    def finals(self) -> list[float]:
        """Accuracy, or whatever measures the runs, after the last round, one per seed; unfinished runs do not count."""
        return [run.accuracy[-1] for run in self.complete]

    @property
    def mean(self) -> float:
        """Mean final accuracy."""
        return sum(self.finals) / len(self.finals)

    @property
    def settled(self) -> float:
        """Mean accuracy of the last ten rounds, over all seeds."""
        tails = [run.accuracy[-LAST:] for run in self.complete]
        return sum(sum(tail) / len(tail) for tail in tails) / len(tails)

    @property
    def first(self) -> Run:
        """The run that stands for all seeds: the finished run with the lowest seed."""
        return min(self.complete or self.runs, key=lambda run: run.seed)


def _described(name: str, value: object) -> str:
    shown = worded(value)
    if name in TUNED:
        return f"{TUNED[name]} = {shown}" if TUNED[name] else shown
    return f"{name} {shown}"


def worded(value: object) -> str:
    """A setting's value as legends show it."""
    return f"{value:g}" if isinstance(value, float) else plain(value, 60)


@dataclass(frozen=True)
class Environment:
    """Runs of one data set, with the same split, number of clients and number of rounds."""

    runs: tuple[Run, ...]
    slug: str

    @property
    def table(self) -> dict[str, Any]:
        """The settings of its first run; those that name the environment are the same in all its runs."""
        return self.runs[0].table

    @property
    def iid(self) -> bool:
        """Whether samples were divided at random."""
        return str(self.table.get("split", "iid")) == "iid"

    @property
    def measure(self) -> str:
        """What its runs are measured by."""
        return self.runs[0].measure

    @property
    def family(self) -> tuple[object, ...]:
        """A key that environments share if only their split differs: they are panels of one figure."""
        return (*(self.table.get(key) for key in PLACE if key != "split"), self.measure)

    @property
    def data(self) -> str:
        """The data set's name as people write it."""
        name = str(self.table.get("data"))
        return NAMES.get(name, plain(name, 60))

    @property
    def split(self) -> str:
        """`IID`, `Non-IID(2)`, `Dirichlet(0.1)`, or what the config says."""
        split = str(self.table.get("split", "iid"))
        kind, _, of = split.partition(":")
        known = {"iid": "IID", "classes": f"Non-IID({of})", "dirichlet": f"Dirichlet({of})"}
        known["dirichlet-equal"] = f"{known['dirichlet']}, equal sizes"
        return plain(known.get(kind, split), 60)

    @property
    def clients(self) -> str:
        """`10 clients`, `100 clients, 10 per round`."""
        count, asked = int(self.table.get("clients", 0)), self.runs[0].participants
        return f"{count:,} clients" + (f", {asked:,} per round" if asked != count else "")

    @property
    def place(self) -> str:
        """Data set, clients and split, in a line."""
        return f"{self.data}, {self.clients}, {self.split}"

    @property
    def title(self) -> str:
        """The environment in a line; with its rounds, where they are not the usual ones of a data set of ours."""
        return self.place + (f", {self.table.get('rounds')} rounds" if self.other_length else "")

    @property
    def other_length(self) -> bool:
        """Whether its runs have another number of rounds than is usual for a data set of ours."""
        data = str(self.table.get("data"))
        return data in NAMES and self.table.get("rounds") != preset_of(data).rounds

    @cached_property
    def total(self) -> int | None:
        """Values of the dense model."""
        return max((run.total for run in self.runs if run.total), default=None)

    @cached_property
    def series(self) -> list[Series]:
        """All series, in the order of legends and tables."""
        usual = self._usual_training()
        found: dict[tuple[str, str, Variant, float | None], list[Run]] = {}
        for run in self.runs:
            variant = _variant(run, usual[run.method, run.recipe])
            found.setdefault((run.method, run.recipe, variant, run.sparsity), []).append(run)
        made = [Series(*key, tuple(sorted(runs, key=lambda run: run.seed))) for key, runs in found.items()]
        return sorted(made, key=Series.order)

    def _usual_training(self) -> dict[tuple[str, str], dict[str, object]]:
        """Method and recipe → the settings of training that most of their runs have."""
        seen: dict[tuple[str, str, str], Counter[object]] = {}
        for run in self.runs:
            for name in TRAINING:
                seen.setdefault((run.method, run.recipe, name), Counter())[_trained_with(run, name)] += 1
        found: dict[tuple[str, str], dict[str, object]] = {}
        for (method, recipe, name), values in seen.items():
            found.setdefault((method, recipe), {})[name] = values.most_common(1)[0][0]
        return found

    def usual(self) -> list[Series]:
        """The series with usual settings: those that figures compare methods by."""
        plain = {(one.method, one.recipe) for one in self.series if not one.variant}
        special = {*TUNED, *TRAINING}
        return [
            one
            for one in self.series
            if (one.method, one.recipe) not in plain or not special & dict(one.variant).keys()
        ]

    def find(self, method: str, sparsity: float | None = None, recipe: str = PAPER) -> Series | None:
        """The series of a method with the usual settings of a recipe, if it has a finished run."""
        for one in self.series:
            same = one.method == method and one.recipe == recipe and one.sparsity == sparsity
            if same and not one.variant and one.complete:
                return one
        return None

    def dense(self, *recipes: str) -> Series | None:
        """The dense series for comparison, of the first recipe that has one; the paper's comes first."""
        wanted = recipes or dict.fromkeys((PAPER, *sorted({run.recipe for run in self.runs})))
        return next((one for recipe in wanted if (one := self._dense(recipe))), None)

    def _dense(self, recipe: str) -> Series | None:
        """FedAvg with the momentum that most pruned runs have."""
        pruned = Counter(run.table.get("momentum") for run in self.runs if run.sparsity is not None)
        usual = pruned.most_common(1)[0][0] if pruned else None
        known = [one for name in ("fedavg", "fedavg-mfl", "fedprox") if (one := self.find(name, recipe=recipe))]
        return next((one for one in known if one.first.table.get("momentum") == usual), known[0] if known else None)


def _trained_with(run: Run, name: str) -> object:
    """A run's setting of training."""
    return run.table.get(name, BEFORE.get(name))


def _variant(run: Run, usual: Mapping[str, object]) -> Variant:
    """The settings of a run that are not those of most runs, of its method's defaults and of its recipe."""
    if run.recipe not in RECIPES or run.recipe == PAPER:
        return _special(run, usual, {})
    table = {**run.table, **{f"method.{name}": value for name, value in run.table["method"].items()}}
    named = {name: table[name] for name in ("method.correction", *LEADERS.values()) if name in table}
    named |= {name: _trained_with(run, name) for name in ("optimizer", "loss")}
    data, network, loss = (str(run.table.get(name)) for name in ("data", "network", "loss"))
    preset = {**vars(preset_of(data)), "momentum": _trained_with(run, "momentum")}
    variants = []
    for facts in candidates(Place(data, network, loss)):
        values = fit(RECIPES[run.recipe].column(facts), METHODS.get(run.method), named)
        values.pop("rounds", None)  # of the environment
        values = {name: value(preset) if callable(value) else value for name, value in values.items()}
        variants.append(_special(run, usual, values))
    return min(variants, key=len)


def _special(run: Run, usual: Mapping[str, object], recipe: Mapping[str, Any]) -> Variant:
    """The settings that are neither usual nor those of the recipe."""
    known = settings(METHODS[run.method]) if run.method in METHODS else {}
    special = {
        name: value
        for name, value in run.table["method"].items()
        if name not in ("name", "sparsity", "times")
        and (
            value != recipe[f"method.{name}"]
            if f"method.{name}" in recipe
            else not (name in known and known[name].is_default(value))
        )
    }
    usual = {**usual, **recipe}
    special |= {name: value for name in TRAINING if (value := _trained_with(run, name)) != usual[name]}
    return tuple(sorted(special.items()))


def varied(environment: Environment, key: str) -> list[Series]:
    """The largest set of series that differ only in one setting of the method."""
    sets: dict[tuple[str, str, float | None, Variant], dict[object, Series]] = {}
    for one in environment.series:
        method = dict(one.runs[0].table["method"])
        if key in method:
            others = tuple((name, value) for name, value in one.variant if name != key)
            sets.setdefault((one.method, one.recipe, one.sparsity, others), {})[method[key]] = one
    if not sets:
        return []
    _, largest = max(sets.items(), key=lambda item: (len(item[1]), -len(item[0][3])))
    return [largest[value] for value in sorted(largest, key=_rank)] if len(largest) > 1 else []


def _rank(value: object) -> tuple[bool, float, str]:
    """Numbers in their order, before anything else."""
    number = float(value) if isinstance(value, int | float) else None
    return number is None, number or 0.0, str(value)


def environments_of(runs: Iterable[Run]) -> list[Environment]:
    """Runs by environment, in a fixed order; each environment has a short name that fits a file."""
    found: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        found.setdefault((*(run.table.get(key) for key in PLACE), run.measure), []).append(run)
    names = list(NAMES)

    def order(place: tuple[object, ...]) -> tuple[object, ...]:
        data, split = str(place[0]), str(place[4])
        known = names.index(data) if data in names else len(names)
        other_rounds = place[PLACE.index("rounds")] != preset_of(data).rounds  # the paper's have the shorter name
        return known, data, place[2] or 0, split != "iid", other_rounds, str(place)

    made: list[Environment] = []
    for place in sorted(found, key=order):
        slug = slug_of(str(place[0]).removesuffix(".npz"), str(place[2]), str(place[4]))
        made.append(Environment(tuple(found[place]), unique(slug, {one.slug for one in made})))
    return made


def unique(slug: str, taken: Collection[str]) -> str:
    """The name, or the first of NAME-v2, NAME-v3, … that is free."""
    names = (f"{slug}-v{number}" if number > 1 else slug for number in count(1))
    return next(name for name in names if name not in taken)


def families_of(environments: Sequence[Environment]) -> list[list[Environment]]:
    """Environments grouped so that only the split differs within a group."""
    found: dict[tuple[object, ...], list[Environment]] = {}
    for environment in environments:
        found.setdefault(environment.family, []).append(environment)
    return list(found.values())


def slug_of(*words: str) -> str:
    """Words as a file's name."""
    return shortened("-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words), 100)
