"""What a run is: one frozen dataclass, read from Python, TOML and flags alike.

A setting left unset takes its recipe's value, or else the paper's for the data set. Reading a config file and writing
it back resolved gives the same run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import toml
from .aggregation.settings import MergeSettings
from .data import check_known, check_seed, parse_split, preset_of
from .errors import ConfigError
from .methods import METHODS, Blaming, Method, check_unchanging, method_class, target_of
from .objects import with_names
from .options import complete_docstring, option, read_settings, settings
from .plugins import ObjectName
from .recipes import PAPER, Place, RecipeName, chosen
from .schedule import check_at_least
from .tasks import check_task, metrics_of, targets_of
from .text import plain
from .training.settings import UNSET, Training
from .wire.values import Precision

MAX_COUNT = 2**31 - 1
CLIENTS = "clients"  # as `data`: only clients have samples
HOLDOUT = 0.2  # of a client's samples, where clients evaluate


@dataclass(frozen=True, kw_only=True)
class RunConfig(MergeSettings, Training):
    """One run: data, network, method and how they are federated. Frozen; every setting is checked when it is made.

    Besides the settings below it takes `method` (a name in `METHODS`, `module:Class`, a table with a `name`, a class
    or a `Method`) and `sparsity`, short for the method's own setting of that name. A setting left out takes the paper's
    value for the data set, or that of `recipe`; of a `Method`, settings with their default values count as left out.

    Recipe "plus": A network without batch norm is trained in batches of four times the usual size at eight times the
    usual rate, falling along a cosine, with LAMP scores, a purge that ends at 0.6 of the rounds, and momentum at the
    server. A network with batch norm is trained at up to four times the usual rate, with magnitudes, a purge that
    starts faster, ends at three quarters of the rounds and spares the norms, running variances of all samples, at most
    100 rounds, augmented samples where these are colour images of at least 32 pixels a side, and, where it has more
    than ten million parameters, weight decay, smoothed labels and a higher bound on the rate.

    Where a setting takes a name, Python may give the object: `data` a `Dataset`, arrays or data sets as `as_dataset`
    takes them, or a function that returns them; `network` a function that makes a module, a class, or a module, which
    is copied with its weights; `loss`, `metrics` and `split` functions. The config then has the object's name
    `module:attribute`, if it can be imported, or a description of it. In the latter case the run can be resumed from
    Python alone, with the same object.

    Raises:
        ConfigError: if a setting is unknown, out of range or does not fit the others.

    Example:
        >>> from fedsparsify import RunConfig
        >>> config = RunConfig(data="digits", sparsity=0.95, rounds=10)
        >>> config
        RunConfig(data='digits', network='fc', method='fedsparsify-global', sparsity=0.95, rounds=10, clients=10, …)
        >>> config.lr, config.method.schedule(10)
        (0.1, 0.95)
    """

    data: str = option(
        "digits",
        "data set: digits, fashion-mnist, cifar10, cifar100, FILE.npz or module:function; clients: only clients have "
        "samples, for serve",
    )
    shape: tuple[int, ...] = option((), "shape of one sample, such as 1,28,28, where a server has no samples")
    classes: int = option(0, "number of classes, labels or values, where a server has no samples; 0: as the data say")
    network: str = option(UNSET, "network: fc, cnn, vgg16, resnet18, resnet18-gn or module:factory")
    recipe: RecipeName = option(
        PAPER, "values of all settings that are not named: paper, or plus (FedSparsify+), see `fedsparsify methods`"
    )
    method: Any = "fedsparsify-global"  # a name, a table with a name, or a Method; a Method once built
    sparsity: float | None = None  # short for the method's own `sparsity`
    clients: int = option(10, "number of clients")
    participation: float = option(1.0, "fraction of the clients that take part in a round")
    min_clients: int = option(1, "a round with fewer usable answers stops the run")
    split: str = option(
        "iid",
        "how samples are divided among clients: iid, classes:K, dirichlet:ALPHA, dirichlet-equal:ALPHA, column or "
        "module:function",
    )
    metrics: tuple[str, ...] = option(
        (), "what models are measured by, such as accuracy,macro-f1 or module:function; none: the usual of the loss"
    )
    evaluate: Literal["server", "clients", "both"] = option(
        "server",
        "who evaluates the global model: the server on its test samples, all clients on samples that they hold out, or "
        "both; with clients no test set is needed, and accuracy is the clients' mean, weighted by samples",
    )
    holdout: float = option(
        UNSET,
        "fraction of each client's samples that it never trains on, the same share of every class",
        unset="0.2 where clients evaluate, else 0",
    )
    patience: int | None = option(
        None,
        "stop the run after this many rounds without an improvement, once the final sparsity is reached; the model is "
        "that of the last round",
        unset="none: all rounds",
    )
    stop_on: str = option(
        UNSET,
        "what patience watches: accuracy, a metric of the run, loss or train_loss",
        unset="accuracy or first metric",
    )
    min_delta: float = option(0.0, "improvement that patience does not count, up to this size")
    device: str = option("cpu", "where to train: cpu, cuda or cuda:N")
    wire: bool = option(True, "send models through the wire format, and count their bytes")
    wire_precision: Precision = option("fp32", "values on the wire; fp32 is lossless")
    checkpoint_every: int = option(1, "rounds between checkpoints")
    diagnose: bool = option(False, "add the terms of the paper's Theorem 1 to every line of the history")

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("data", "network", "loss", "split", "metrics")}
        for name, value in with_names(given).items():
            object.__setattr__(self, name, value)
        if self.data == CLIENTS:
            object.__setattr__(self, "evaluate", CLIENTS)  # nobody else can
        else:
            check_known(self.data)
        preset = preset_of(self.data)
        kind, table = _method_table(self.method, self.sparsity)
        object.__setattr__(self, "recipe", settings(RunConfig)["recipe"].read(self.recipe))
        preset_values = {
            name: getattr(preset, name) for name in ("network", "batch_size", "lr", "nesterov", "augment", "rounds")
        }
        with Blaming(kind, "default_momentum"):
            preset_values["momentum"] = kind.default_momentum(preset.momentum if self.optimizer == "sgd" else 0.0)
        if self.recipe != PAPER:
            table |= self._follow_recipe(kind, table, preset_values)
        preset_values |= self.defaults()
        preset_values |= {"holdout": 0.0 if self.evaluate == "server" else HOLDOUT, "stop_on": self._watched()[0]}
        for name, value in preset_values.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        mine = {field: getattr(self, field) for field in settings(RunConfig)}
        for name, value in read_settings(RunConfig, mine, "a run").items():
            object.__setattr__(self, name, value)
        with Blaming(kind, "__init__"):
            method = kind(**table, rounds=self.rounds)
        check_unchanging(method)
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "sparsity", None)
        self._check()

    def _follow_recipe(self, kind: type[Method], table: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
        """Set what the recipe says and the run does not; returns its values for the method."""
        mine = settings(RunConfig)
        named = {name: getattr(self, name) for name in mine if getattr(self, name) is not None}
        # A run that names everything was resolved before: its method's settings are all meant as they are.
        unresolved = any(one.default is None and not one.optional and name not in named for name, one in mine.items())
        if isinstance(self.method, Method) and unresolved:
            known = settings(kind)
            table = {name: value for name, value in table.items() if value != known[name].default}
        named |= {f"method.{name}": value for name, value in table.items()}
        place = Place(self.data, self.network or usual["network"], self.loss, tuple(self.shape), self.classes)
        found = chosen(self.recipe, named, kind, place)
        taken = {**usual, **named}
        for name in found.keys() & mine.keys():
            value = found[name]
            object.__setattr__(self, name, value(taken) if callable(value) else value)
        return {name.removeprefix("method."): value for name, value in found.items() if name not in mine}

    def _check(self) -> None:
        for name in ("epochs", "batch_size", "rounds", "clients", "min_clients", "checkpoint_every"):
            check_at_least(name, getattr(self, name), 1)
            if getattr(self, name) > MAX_COUNT:
                raise ConfigError(f"{name} must be at most {MAX_COUNT:,}. Received: {getattr(self, name)!r}.")
        check_seed(self.seed)
        self.check_training()
        if not 0 < self.participation <= 1:
            raise ConfigError(f"participation must lie in (0, 1]. Received: {self.participation!r}.")
        if not 0 <= self.holdout < 1:
            raise ConfigError(f"holdout must lie in [0, 1). Received: {self.holdout!r}.")
        if self.evaluate != "server" and not self.holdout:
            raise ConfigError(
                f"evaluate {self.evaluate!r} needs samples that clients hold out: a holdout above 0, such as 0.2. "
                f"Received: holdout {self.holdout!r}."
            )
        if self.patience is not None:
            check_at_least("patience", self.patience, 1)
        if self.stop_on not in (known := self._watched()):
            raise ConfigError(f"stop_on must be one of {', '.join(known)}. Received: {self.stop_on!r}.")
        if not 0 <= self.min_delta < float("inf"):
            raise ConfigError(f"min_delta must be 0 or more. Received: {self.min_delta!r}.")
        self._check_declared()
        if self.min_clients > self.participants:
            raise ConfigError(
                f"min_clients must not exceed the {self.participants} clients that a round asks. "
                f"Received: {self.min_clients!r}."
            )
        if self.wire_precision != "fp32" and not self.wire:
            raise ConfigError(f"wire_precision needs the wire. Received: {self.wire_precision!r} with wire off.")
        self.check_merging(self.method, self.method_name)
        usual = {"diagnose": False, "min_clients": 1, "evaluate": "server", "max_samples": 0}
        others = {name: (getattr(self, name), value) for name, value in usual.items()}
        self.check_privacy(self.method, self.method_name, self.clients, others)
        parse_split(self.split)
        check_task(self.loss, self.metrics)
        target_of(self.method, 1)  # building it checks the method's settings against the number of rounds

    def _check_declared(self) -> None:
        """Refuse a shape and a number of classes that cannot be, or that are needed and not there."""
        if any(not 0 < side <= MAX_COUNT for side in self.shape):
            raise ConfigError(f"shape must be a list of sides, each 1 or more. Received: {list(self.shape)}.")
        least = 2 if targets_of(self.loss) == "classes" else 1
        if self.classes and not least <= self.classes <= MAX_COUNT:
            raise ConfigError(
                f"classes must be {least} or more, or 0 for as many as the data say. Received: {self.classes}."
            )
        if self.data == CLIENTS and not (self.shape and self.classes):
            raise ConfigError(
                f'data "{CLIENTS}" needs the shape of a sample and the number of classes, such as shape = [1, 28, 28] '
                f"and classes = 10. Received: shape {list(self.shape)} and classes {self.classes}."
            )

    def __repr__(self) -> str:
        sparsity = getattr(self.method, "sparsity", None)
        shown: dict[str, object] = {"data": self.data, "network": self.network, "method": self.method_name}
        shown |= {} if sparsity is None else {"sparsity": sparsity}
        shown |= {"rounds": self.rounds, "clients": self.clients}
        return f"RunConfig({', '.join(f'{name}={plain(repr(value))}' for name, value in shown.items())}, …)"

    def _watched(self) -> tuple[str, ...]:
        """What early stopping can watch: accuracy where there is one, the run's metrics, and losses."""
        targets = targets_of(self.loss) if isinstance(self.loss, str) else None
        accuracy = ("accuracy",) if targets in (None, "classes") else ()
        named = [name for name in self.metrics if isinstance(name, str)] if isinstance(self.metrics, tuple) else []
        metrics = metrics_of(named, targets) if targets else tuple(named)
        return tuple(dict.fromkeys((*accuracy, *metrics, "loss", "train_loss")))

    @property
    def participants(self) -> int:
        """How many clients a round asks."""
        return max(1, round(self.participation * self.clients))

    @property
    def method_name(self) -> str:
        """The method's name in METHODS, or `module:Class`."""
        kind = type(self.method)
        ours = [name for name, known in METHODS.items() if known is kind]
        return ours[0] if ours else f"{kind.__module__}:{kind.__qualname__}"

    def table(self) -> dict[str, Any]:
        """The resolved config as a config file holds it.

        Returns:
            Every setting by name, with those of the method in a table.
        """
        method = {name: getattr(self.method, name) for name in settings(type(self.method))}
        return {name: getattr(self, name) for name in settings(RunConfig)} | {
            "method": {"name": self.method_name} | method
        }

    def differences(self, other: RunConfig) -> list[str]:
        """Settings in which two runs differ; `device` does not count.

        Nor does `epsilon` if this run has its noise: it is a budget, and may be raised. If it has none yet, the noise
        follows from `epsilon`.

        Args:
            other: another run.

        Returns:
            Names of settings.
        """
        ignored = {"device", *(["epsilon"] if self.dp_noise else ["dp_noise"] if self.epsilon else [])}
        mine, theirs = _flat(self.table()), _flat(other.table())
        names = sorted(mine.keys() | theirs.keys())
        return [
            f"{name} {theirs.get(name)!r} is now {mine.get(name)!r}"
            for name in names
            if name not in ignored and mine.get(name) != theirs.get(name)
        ]


complete_docstring(RunConfig)


def _method_table(method: object, sparsity: float | None) -> tuple[type[Method], dict[str, Any]]:
    """The method's class and its settings, from a name, a table or a method."""
    if isinstance(method, Method):
        kind, table = type(method), {name: getattr(method, name) for name in settings(type(method))}
    elif isinstance(method, Mapping):
        table = dict(method)
        if not isinstance(table.get("name"), str | type):
            raise ConfigError(f"the [method] table must have a name. Received: {table!r}.")
        kind = _kind(table.pop("name"))
    elif isinstance(method, str | type):
        kind, table = _kind(method), {}
    else:
        raise ConfigError(f"method must be a name, a class, a table or a Method. Received: {method!r}.")
    if sparsity is not None:
        table["sparsity"] = sparsity
    return kind, read_settings(kind, table, f"method {kind.__name__}", "method.")


def _kind(method: str | type) -> type[Method]:
    """The class that a name says, or that is given."""
    if isinstance(method, str):
        return method_class(method)
    return method_class(ObjectName(f"{method.__module__}:{method.__qualname__}", method))


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    method = {f"method.{name}": value for name, value in table["method"].items()}
    return {name: value for name, value in table.items() if name != "method"} | method


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a config file."""
    try:
        return toml.loads(path.read_text("utf-8"))
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder, not a config. Go on with its run by --out {path} --resume, or repeat it by "
            f"naming {path / 'config.toml'}."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error


def make_config(table: Mapping[str, Any], path: Path | None = None) -> RunConfig:
    """A config from a table of settings. An unknown name is an error that says the nearest one and its line."""
    try:
        table = with_names(table)
        named = {name: value for name, value in table.items() if name not in ("method", "sparsity")}
        read_settings(RunConfig, {name: value for name, value in named.items() if value is not None}, "a run")
        return RunConfig(**table)
    except ConfigError as error:
        raise ConfigError(f"{error}{_where(str(error), path)}") from None


def load_config(path: Path) -> RunConfig:
    """The config that a file holds."""
    return make_config(read_toml(path), path)


def _where(message: str, path: Path | None) -> str:
    """`  (run.toml, line 14)` for the first setting of the file that the message names."""
    if path is None:
        return ""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        key = re.match(r"\s*([\w-]+)\s*=", line)
        if key and re.search(rf"(?<![\w-]){re.escape(key[1])}(?![\w-])", message):
            return f"  ({path}, line {number})"
    return f"  ({path})"


def to_toml(config: RunConfig) -> str:
    """The resolved config as a file's text."""
    return toml.dumps(config.table())
