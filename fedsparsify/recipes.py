"""Recipes: values that belong together, for the settings that a run does not name.

`paper` is the paper's settings. `plus` is FedSparsify+: higher accuracy at the same sparsity, with no byte more
(docs/plus.md). Its rule: A network without batch norm is trained in batches of four times the usual size at eight times
the usual rate, falling along a cosine, with LAMP scores, a purge that ends at 0.6 of the rounds, and momentum at the
server. A network with batch norm is trained at up to four times the usual rate, with magnitudes, a purge that starts
faster, ends at three quarters of the rounds and spares the norms, running variances of all samples, at most 100 rounds,
augmented samples where these are colour images of at least 32 pixels a side, and, where it has more than ten million
parameters, weight decay, smoothed labels and a higher bound on the rate.

In: a recipe's name and what a run names. Out: values for the settings that it does not name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .data import DATASETS, load_samples
from .errors import ConfigError, FedSparsifyError
from .methods import Averaging, Method, Scheduled, Selecting
from .options import settings
from .plugins import ObjectName, load_named
from .tasks import Targets, targets_of

RecipeName = Literal["paper", "plus"]
PAPER = "paper"


@dataclass(frozen=True)
class Rate:
    """A multiple of the usual learning rate, but at most so much of `1 - momentum`.

    With momentum m, a gradient moves a weight by lr / (1 - m) times itself in the end: what is bounded is this.
    """

    factor: float
    most: float | None = None

    def __call__(self, usual: Mapping[str, Any]) -> float:
        """The rate in place of the usual one."""
        rate = self.factor * float(usual["lr"])
        most = rate if self.most is None else self.most * (1 - float(usual["momentum"]))
        return float(f"{min(rate, most):.6g}")  # 0.02, not 0.020000000000000004

    def __str__(self) -> str:
        return f"{self.factor:g} × the data set's" + (f", at most {self.most:g} · (1 - momentum)" if self.most else "")


@dataclass(frozen=True)
class Batch:
    """A multiple of the usual batch size."""

    factor: int

    def __call__(self, usual: Mapping[str, Any]) -> int:
        """The size in place of the usual one."""
        return self.factor * int(usual["batch_size"])

    def __str__(self) -> str:
        return f"{self.factor} × the data set's"


@dataclass(frozen=True)
class AtMost:
    """The usual number of rounds, or this one if that is larger."""

    most: int

    def __call__(self, usual: Mapping[str, Any]) -> int:
        """The number in place of the usual one."""
        return min(self.most, int(usual["rounds"]))

    def __str__(self) -> str:
        return f"the data set's, at most {self.most}"


@dataclass(frozen=True)
class Facts:
    """What a recipe looks at."""

    batch_norm: bool = False
    images: bool = False  # colour images of at least 32 pixels a side, with one class or some labels each
    large: bool = False  # more than ten million parameters


@dataclass(frozen=True)
class Recipe:
    """Values of settings, by kind of network; those of the method are called `method.NAME`."""

    about: str
    without_batch_norm: Mapping[str, Any] = field(default_factory=dict)
    with_batch_norm: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)  # with batch norm: further ones, for colour images
    large: Mapping[str, Any] = field(default_factory=dict)  # and further ones, for many parameters

    def column(self, facts: Facts) -> dict[str, Any]:
        """The values for a kind of network and samples."""
        if not facts.batch_norm:
            return {**self.without_batch_norm}
        return {**self.with_batch_norm, **(self.images if facts.images else {}), **(self.large if facts.large else {})}


# A setting of a run that stands here has no default of its own (`UNSET` in training/settings.py), so that a value which
# a user names is known from the usual one.
RECIPES: dict[str, Recipe] = {
    PAPER: Recipe("the paper's settings for the data set"),
    "plus": Recipe(
        "FedSparsify+: higher accuracy at the same sparsity, with no byte more (docs/plus.md)",
        without_batch_norm={
            "batch_size": Batch(4),
            "lr": Rate(8),
            "lr_schedule": "cosine",
            "lr_final": 0.02,
            "method.score": "lamp",
            "method.end": 0.6,
            "method.server_optimizer": "momentum",
            "method.server_lr": 0.9,
            "method.server_momentum": 0.7,
        },
        with_batch_norm={
            "rounds": AtMost(100),
            "lr": Rate(4, most=0.08),
            "lr_schedule": "cosine",
            "lr_final": 0.02,
            "method.end": 0.75,
            "method.exponent": 5.0,
            "method.exclude": ("norms",),
            "method.statistics": "pooled",
        },
        images={"augment": "pad-crop-flip"},
        large={"lr": Rate(4, most=0.2), "weight_decay": 0.003, "label_smoothing": 0.1},
    ),
}
# A setting that means something only beside another's value: it is left out where that one has another value.
LEADERS = {
    "lr_final": "lr_schedule",
    "method.server_lr": "method.server_optimizer",
    "method.server_momentum": "method.server_optimizer",
}
# Values that suit one choice of another setting alone: rates, and the batches and decay that go with them, are of SGD.
SUITS = dict.fromkeys(("lr", "batch_size", "weight_decay"), ("optimizer", "sgd"))
SUITS |= {"label_smoothing": ("loss", "cross-entropy")}
# Our networks, so that a config is read without torch.
BATCH_NORM = {"fc": False, "cnn": True, "vgg16": True, "resnet18": True, "resnet18-gn": False}
MANY = 10_000_000  # parameters: networks with more have values of their own
SMALL_UP_TO = {"vgg16": None, "resnet18": None, "cnn": 64}  # pixels per side with fewer than `MANY`; None: never
LEAST_SIDE = 32  # pixels of images that are augmented
KINDS = (Facts(), *(Facts(True, images, large) for images in (False, True) for large in (False, True)))


@dataclass(frozen=True)
class Place:
    """Where a recipe is used: names of a run's settings, and the shape of its samples where the run names it."""

    data: str
    network: str
    loss: str
    shape: tuple[int, ...] = ()
    classes: int = 0


def chosen(recipe: str, named: Mapping[str, Any], kind: type[Method], place: Place) -> dict[str, Any]:
    """The values that a recipe gives the settings that a run does not name, or how each follows from the usual ones.

    Args:
        recipe: its name.
        named: what the run names, the method's settings as `method.NAME`.
        kind: the method. What it does not have is left out.
        place: data set, network and loss of the run.

    Raises:
        ConfigError: if the network has to be looked at and cannot be, or if the run names other values for everything.
    """
    columns = [RECIPES[recipe].column(facts) for facts in KINDS]
    fitting = [fit(column, kind, named) for column in columns]
    left = {name for column in fitting for name in column if name not in named}
    if not left:
        _check_effective(recipe, fitting, named)
        return {}
    facts = facts_of(recipe, place, left)
    column = fit(RECIPES[recipe].column(facts), kind, named)
    return {name: value for name, value in column.items() if name not in named}


def fit(column: Mapping[str, Any], kind: type[Method] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a column that a method takes, beside what a run names."""
    taken = {
        name: value
        for name, value in column.items()
        if (
            kind and _takes(kind, name.removeprefix("method."), named)
            if name.startswith("method.")
            else _suits(name, named)
        )
    }
    return {name: value for name, value in taken.items() if _follows(name, column, taken, kind, named)}


def _suits(name: str, named: Mapping[str, Any]) -> bool:
    """Whether the run has what a value is meant for."""
    setting, meant = SUITS.get(name, ("", None))
    return bool(named.get(setting, meant) == meant)


def _takes(kind: type[Method], name: str, named: Mapping[str, Any]) -> bool:
    """Whether a method has the setting from one of our bases, with the base's default and the base's code for it."""
    base = next(base for base in (Averaging, Selecting, Scheduled) if name in base.__annotations__)
    if not issubclass(kind, base) or settings(kind)[name].default != settings(base)[name].default:
        return False
    if base is Averaging:  # a correction of client drift takes the place of the server's optimiser
        correction = named.get("method.correction", settings(kind)["correction"].default)
        return kind.averages and (correction == "none" or not name.startswith("server_"))
    return name != "score" or (issubclass(kind, Selecting) and kind.scores is Selecting.scores)


def _follows(
    name: str, column: Mapping[str, Any], taken: Mapping[str, Any], kind: type[Method] | None, named: Mapping[str, Any]
) -> bool:
    """Whether the setting that this one depends on has the recipe's value."""
    leader = LEADERS.get(name)
    if leader is None:
        return True
    usual = settings(kind)[leader.removeprefix("method.")].default if kind and leader.startswith("method.") else None
    return bool(named.get(leader, taken.get(leader, usual)) == column[leader])


def _check_effective(recipe: str, columns: Collection[Mapping[str, Any]], named: Mapping[str, Any]) -> None:
    """Refuse a recipe of which nothing is left."""
    literal = {(name, value) for column in columns for name, value in column.items() if not callable(value)}
    if literal and not any(named[name] == value for name, value in literal if name in named):
        names = sorted({name for name, _ in literal})
        raise ConfigError(
            f"recipe {recipe!r} would change nothing: other values are named for all of its settings "
            f"({', '.join(names)}). Leave some of them out, or use recipe {PAPER!r}."
        )


# What was looked at, and what the names meant then: kept, so that no other object has its id.
_SEEN: dict[tuple[object, ...], tuple[Facts, object]] = {}


def facts_of(recipe: str, place: Place, left: Collection[str] = ()) -> Facts:
    """What a recipe looks at: known by name for ours, else the data set is loaded and the network built."""
    if (known := known_facts(place)) is not None:
        return known
    try:
        if any(isinstance(name, ObjectName) for name in (place.data, place.network)):
            return _looked_up(place)  # nothing to import, and objects are not to be kept
        meant = [_meant(place.data), _meant(place.network)]
        key = (place, *(one if isinstance(one, tuple) else id(one) for one in meant))
        if key not in _SEEN:
            _SEEN[key] = _looked_up(place), meant
        return _SEEN[key][0]
    except ImportError as error:
        reason = f"{error}. pip install 'fedsparsify[train]'"
    except FedSparsifyError as error:
        reason = str(error).rstrip(".")
    raise ConfigError(
        f"recipe {recipe!r} depends on whether network {place.network!r} has batch norm and how large it is, and on "
        f"whether data {place.data!r} holds colour images, and these cannot be looked at: {reason}. "
        f"Or name the settings yourself: "
        f"{', '.join(sorted(left))}."
    )


def known_facts(place: Place) -> Facts | None:
    """What the names of our networks and data sets say; None: not enough."""
    batch_norm = BATCH_NORM.get(place.network)
    if batch_norm is False:
        return Facts()
    shape = place.shape or (DATASETS[place.data].shape if place.data in DATASETS else ())
    if batch_norm is None or not shape:
        return None
    most = SMALL_UP_TO[place.network]
    if most and not (isinstance(shape, tuple) and max(shape) <= most):
        return None  # to be counted
    return Facts(True, _images(shape, targets_of(place.loss) or "classes", 1), large=most is None)


def candidates(place: Place) -> list[Facts]:
    """What may be the facts of a run, as far as names say it."""
    known = known_facts(place)
    return [known] if known else [*KINDS]


def _meant(name: str) -> object:
    """What a name means now: a file's state, or the function."""
    if name.endswith(".npz"):
        state = os.stat(name) if os.path.exists(name) else None
        return (state.st_mtime_ns, state.st_size) if state else ()
    return () if name in (*DATASETS, *BATCH_NORM, "clients") else load_named(name, {}, "object")


def _looked_up(place: Place) -> Facts:
    shape, outputs, targets, dimensions = place.shape, place.classes, targets_of(place.loss) or "classes", 1
    if not (shape and outputs):  # a run that names both may have no samples
        dataset = load_samples(place.data, targets_of(place.loss))
        shape, outputs, targets, dimensions = dataset.shape, dataset.outputs, dataset.targets, dataset.y_train.ndim
    images = _images(shape, targets, dimensions)
    if (known := known_facts(replace(place, shape=shape))) is not None:
        return replace(known, images=images)
    from .networks import build, has_batch_norm

    module = build(place.network, shape, outputs, seed=0)
    return Facts(has_batch_norm(module), images, sum(one.numel() for one in module.parameters()) > MANY)


def _images(shape: Any, targets: Targets, dimensions: int) -> bool:
    """Whether samples may be shifted and mirrored: colour images, large enough, whose targets do not move with them."""
    image = isinstance(shape, tuple) and len(shape) == 3 and shape[0] == 3 and min(shape[1:]) >= LEAST_SIDE
    return image and targets != "values" and dimensions <= 2
