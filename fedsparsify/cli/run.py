"""`fedsparsify run`: one federated run over simulated clients."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..aggregation.settings import MergeSettings
from ..config import RunConfig, make_config, read_toml
from ..errors import ConfigError
from ..federation.ledger import Entry
from ..methods import METHODS
from ..options import Setting, settings
from ..recipes import PAPER
from ..stopping import EXIT_CODE, ending, uninterrupted
from ..text import file_name
from ..training.settings import Training
from .ending import show_ending, show_stopped
from .flags import OUTPUT, PATH, flag
from .json_lines import JsonLines, json_lines
from .screen import Screen, screen


def _method_settings() -> dict[str, Setting]:
    """The settings of all methods by name; the help is that of the first method that has it."""
    known: dict[str, Setting] = {}
    for kind in METHODS.values():
        for name, setting in settings(kind).items():
            first = known.setdefault(name, setting)
            kind = float if {first.type, setting.type} == {int, float} else first.type
            default = first.default if first.default == setting.default else "the method's"
            known[name] = replace(first, type=kind, default=default)
    return known


METHOD_SETTINGS = _method_settings()


def _parameters() -> list[click.Parameter]:
    """The argument and the flags of `run`."""
    return [
        click.Argument(["config"], required=False, type=PATH),
        *(
            flag(setting)
            for name, setting in settings(RunConfig).items()
            if name not in settings(Training) | settings(MergeSettings)
        ),
        *(flag(setting, "training: ") for setting in settings(Training).values()),
        *(flag(setting, "merging: ") for setting in settings(MergeSettings).values()),
        click.Option(["--method"], help="method, see `fedsparsify methods`, or module:Class"),
        *(flag(setting, "method: ") for setting in METHOD_SETTINGS.values()),
        click.Option(["--set", "extra"], multiple=True, metavar="NAME=VALUE", help="any setting of your own method"),
        click.Option(["--out"], type=PATH, help="folder for the run  [default: runs/…]"),
        click.Option(["--resume"], is_flag=True, help="go on where the run in --out stopped"),
        click.Option(
            ["--track"],
            type=click.Choice(["tensorboard", "mlflow", "wandb"]),
            help="also send every round to TensorBoard, MLflow or Weights & Biases",
        ),
        *OUTPUT,
    ]


def _collect(config: Path | None, out: Path | None, resume: bool, flags: dict[str, Any]) -> tuple[RunConfig, Path]:
    """The config from file and flags (flags win), and the run's folder."""
    saved = out / "config.toml" if resume and out else None
    source = config or (saved if saved and saved.exists() else None)
    try:
        table = read_toml(source) if source else {}
    except ConfigError:
        if source is not saved:
            raise
        table = {}  # the run's folder is refused later, with what to do about it
    method = table.get("method", "fedsparsify-global")
    options = dict(method) if isinstance(method, dict) else {"name": method}
    if (named := flags.pop("method")) and named != options.get("name"):
        options = {"name": named}
    for text in flags.pop("extra"):
        options |= _assignment(text)
    for name in METHOD_SETTINGS:
        if (value := flags.pop(name)) not in (None, ()):
            options[name] = value
    table |= {name: value for name, value in flags.items() if value not in (None, ())}
    made = make_config(table | {"method": options}, source)
    return made, out or _default_out(made, resume)


def _assignment(text: str) -> dict[str, Any]:
    """`alpha=0.5` → {"alpha": 0.5}. A value that is not TOML is taken as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"--set takes NAME=VALUE. Received: {text!r}.")
    try:
        return {name: tomllib.loads(f"value = {value}")["value"]}
    except tomllib.TOMLDecodeError:
        return {name: value}


def _default_out(config: RunConfig, resume: bool) -> Path:
    """runs/<data>-<method>[-<sparsity>][-<recipe>], with a number if that exists; to resume, the newest that exists."""
    recipe = [] if config.recipe == PAPER else [config.recipe]
    parts = [Path(config.data).stem, config.method_name, *_sparsity_of(config), *recipe]
    first = Path("runs") / file_name("-".join(parts))
    candidates = [first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 10_000))]
    free = next(i for i, path in enumerate(candidates) if not path.exists())
    return candidates[max(free - 1, 0)] if resume else candidates[free]


def _sparsity_of(config: RunConfig) -> list[str]:
    sparsity = getattr(config.method, "sparsity", None)
    return [] if sparsity is None else [f"{sparsity:g}"]


def _run(
    config: Path | None, out: Path | None, resume: bool, track: str | None, quiet: bool, as_json: bool, **flags: Any
) -> int:
    with json_lines(as_json) as lines:
        return _run_on(screen(quiet, as_json), lines, config, out, resume, track, flags)


def _run_on(
    console: Screen,
    lines: JsonLines | None,
    config: Path | None,
    out: Path | None,
    resume: bool,
    track: str | None,
    flags: dict[str, Any],
) -> int:
    """The command, with where to print."""
    with uninterrupted():  # an interrupted import may leave half a module
        from ..federation.run import Result, RunFolder, run
        from ..track import tracking
        from .progress import Progress

    resolved, folder = _collect(config, out, resume, flags)
    result: Result | None = None
    progress = Progress(console, resolved)
    try:
        with progress, tracking(track, resolved, folder) as tracker:

            def show(entry: Entry) -> None:
                progress.show(entry)
                tracker.log(entry)
                if lines:
                    lines.show(entry)

            result = run(resolved, folder, resume, show)
        show_ending(console, resolved, result.history, folder, RunFolder(folder).model)
    except KeyboardInterrupt:
        with ending():
            if not RunFolder(folder).config.exists():
                raise
            done = f"after round {progress.round}" if result is None else "while the report was written"
            show_stopped(console, f"run --out {folder} --resume", done)
            return EXIT_CODE
    return 0


command = click.Command(
    "run",
    params=_parameters(),
    callback=_run,
    help="""Train one model, federated over simulated clients, and write its files to a folder.

    CONFIG is a TOML file with the same names as the flags (method settings in a [method] table); flags win.
    A setting that neither names takes the paper's value for the data set. With --recipe plus (FedSparsify+) it takes
    the value that proved best for the data set and the network; each part can be overridden by naming the setting, and
    OUT/config.toml shows all values. `fedsparsify methods` lists what the recipes set.

    \b
    OUT/config.toml     the resolved config     OUT/model.fsz     the sparse model
    OUT/history.jsonl   one line per round      OUT/curves.png    accuracy and size by round
    OUT/partition.png   who held what           OUT/report.html   the run on one page
    """,
)
