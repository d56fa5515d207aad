"""The command line. Flags are made from the same dataclass fields that config files name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..config import RunConfig, Training, make_config, read_toml
from ..data import DATASETS, holdings, load_dataset, partition
from ..data.datasets import Source
from ..data.files import cache_folder
from ..errors import ConfigError, nearest
from ..federation.ledger import Entry
from ..methods import METHODS
from ..options import Setting, settings
from ..stopping import EXIT_CODE, ending, uninterrupted
from ..text import file_name, plain
from .bench import bench, infer
from .ending import show_ending
from .inspect import export, inspect
from .report import report
from .screen import Screen
from .serve import join, keys, serve
from .sweep import sweep


def _method_settings() -> dict[str, Setting]:
    """The settings of all methods by name; the first method to have one names its help."""
    known: dict[str, Setting] = {}
    for kind in METHODS.values():
        for name, setting in settings(kind).items():
            same = known.setdefault(name, setting).default == setting.default
            known[name] = known[name] if same else replace(known[name], default="the method's")
    return known


METHOD_SETTINGS = _method_settings()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fedsparsify")
def cli() -> None:
    """Train extremely sparse neural networks on data that never leaves its owners.

    \b
    fedsparsify run                                     a small run on the digits that come with us
    fedsparsify run --data fashion-mnist --split classes:2 --sparsity 0.95
    fedsparsify run --out runs/mine --resume            go on after a stop
    """


def _flag(setting: Setting, group: str = "") -> click.Option:
    """A setting as a flag; unset unless given, so that presets and config files show through."""
    dashed = setting.name.replace("_", "-")
    kind: Any = click.Choice(setting.choices) if setting.choices else setting.type
    default = "the data set's" if setting.default is None else setting.default
    help = f"{group}{setting.help}  [default: {default}]"
    if setting.type is bool:
        return click.Option([f"--{dashed}/--no-{dashed}", setting.name], default=None, help=help)
    return click.Option([f"--{dashed}", setting.name], type=kind, default=None, help=help)


def _run_flags() -> list[click.Parameter]:
    """Every flag of `run`."""
    return [
        click.Argument(["config"], required=False, type=click.Path(path_type=Path)),
        *(_flag(setting) for name, setting in settings(RunConfig).items() if name not in settings(Training)),
        *(_flag(setting, "training: ") for setting in settings(Training).values()),
        click.Option(["--method"], help="method, see `fedsparsify methods`, or module:Class"),
        *(_flag(setting, "method: ") for setting in METHOD_SETTINGS.values()),
        click.Option(["--set", "extra"], multiple=True, metavar="NAME=VALUE", help="any setting of your own method"),
        click.Option(["--out"], type=click.Path(path_type=Path), help="folder for the run  [default: runs/…]"),
        click.Option(["--resume"], is_flag=True, help="go on where the run in --out stopped"),
        click.Option(
            ["--track"],
            type=click.Choice(["tensorboard", "mlflow"]),
            help="also tell TensorBoard or MLflow every round",
        ),
    ]


def _collect(config: Path | None, out: Path | None, resume: bool, flags: dict[str, Any]) -> tuple[RunConfig, Path]:
    """The config that file and flags describe together (flags win), and the run's folder."""
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
        if (value := flags.pop(name)) is not None:
            options[name] = value
    table |= {name: value for name, value in flags.items() if value is not None}
    made = make_config(table | {"method": options}, source)
    return made, out or _default_out(made, resume)


def _assignment(text: str) -> dict[str, Any]:
    """`alpha=0.5` → {"alpha": 0.5}; a value that is not TOML is text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"--set takes NAME=VALUE. Received: {text!r}.")
    try:
        return {name: tomllib.loads(f"value = {value}")["value"]}
    except tomllib.TOMLDecodeError:
        return {name: value}


def _default_out(config: RunConfig, resume: bool) -> Path:
    """runs/<data>-<method>[-<sparsity>]; with a number where that is taken, or the newest of them to resume."""
    parts = [Path(config.data).stem, config.method_name, *_sparsity_of(config)]
    first = Path("runs") / file_name("-".join(parts))
    taken = [first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 10_000))]
    free = next(i for i, path in enumerate(taken) if not path.exists())
    return taken[max(free - 1, 0)] if resume else taken[free]


def _sparsity_of(config: RunConfig) -> list[str]:
    sparsity = getattr(config.method, "sparsity", None)
    return [] if sparsity is None else [f"{sparsity:g}"]


def _run(config: Path | None, out: Path | None, resume: bool, track: str | None, **flags: Any) -> int:
    with uninterrupted():  # an import that is interrupted may leave half a module
        from ..federation.run import Result, RunFolder, run
        from ..track import tracking
        from .progress import Progress

    made, folder = _collect(config, out, resume, flags)
    console = Screen()
    result: Result | None = None
    progress = Progress(console, made)
    try:
        with progress, tracking(track, made, folder) as tracker:

            def seen(entry: Entry) -> None:
                progress.show(entry)
                tracker.log(entry)

            result = run(made, folder, resume, seen)
        show_ending(console, made, result.history, folder, RunFolder(folder).model)
    except KeyboardInterrupt:
        with ending():
            if not RunFolder(folder).config.exists():
                raise
            done = f"after round {progress.round}" if result is None else "while the report was written"
            console.print(f"Stopped {done}. Nothing is lost; go on with:")
            console.print(f"  fedsparsify run --out {folder} --resume", soft_wrap=True)
            return EXIT_CODE
    return 0


cli.add_command(sweep)
cli.add_command(report)
cli.add_command(
    click.Command(
        "run",
        params=_run_flags(),
        callback=_run,
        help="""Train one model, federated over simulated clients, and leave its files in a folder.

        CONFIG is a TOML file with the same names as the flags (method settings in a [method] table); flags win.
        What neither names takes the paper's value for the data set.

        \b
        OUT/config.toml     the resolved config     OUT/model.fsz     the sparse model
        OUT/history.jsonl   one line a round        OUT/curves.png    accuracy and size by round
        OUT/partition.png   who held what           OUT/report.html   the run on one page
        """,
    )
)


cli.add_command(inspect)
cli.add_command(export)
cli.add_command(infer)
cli.add_command(bench)
for federated in (serve, join, keys):
    cli.add_command(federated)


@cli.command()
def methods() -> None:
    """List the methods and their settings."""
    table = Table("method", "what it does", "settings (default)")
    for name, kind in METHODS.items():
        known = [f"{s.name} ({s.default:g})" if s.type is float else f"{s.name} ({s.default})" for s in _settings(kind)]
        table.add_row(name, (kind.__doc__ or "").split("\n")[0], "\n".join(known) or "–", end_section=True)
    Screen().print(table)
    Screen().print("Your own: a subclass of fedsparsify.methods.Method, named module:Class.")


def _settings(kind: type) -> Iterable[Setting]:
    return settings(kind).values()


@cli.command()
@click.argument("name", required=False)
@click.option("--download", is_flag=True, help="fetch the data set where it is not on this machine")
@click.option("--split", default=None, help="show who would hold what: iid, classes:K or dirichlet:ALPHA")
@click.option("--clients", default=10, show_default=True, help="clients to divide among")
@click.option("--seed", default=1990, show_default=True, help="seed of the division")
@click.option("--figure", type=click.Path(path_type=Path), help="draw the division into this file")
def data(name: str | None, download: bool, split: str | None, clients: int, seed: int, figure: Path | None) -> None:
    """List the data sets, fetch one, or show how a split divides it."""
    console = Screen()
    if name is None:
        _list_data(console)
        return
    if download:
        _source(name).load()
        console.print(f"{plain(name)} is whole and in place.")
    if split is None and figure is None:
        if not download:
            _list_data(console, name)
        return
    dataset = load_dataset(name)
    parts = partition(dataset.y_train, clients, split or "iid", seed)
    counts = holdings(dataset.y_train, parts, dataset.classes)
    table = Table("client", "samples", "classes")
    for client, row in enumerate(counts[:20]):
        held = [plain(dataset.labels[c], 40) if c < len(dataset.labels) else str(c) for c in row.nonzero()[0]]
        table.add_row(str(client), f"{row.sum():,}", ", ".join(held[:10]) + (" …" if len(held) > 10 else ""))
    console.print(table)
    if len(counts) > 20:
        console.print(f"… and {len(counts) - 20:,} clients more")
    if figure:
        from ..report.figures import draw_partition

        draw_partition(counts.tolist(), figure)
        console.print(f"Figure: {figure}", soft_wrap=True)


def _source(name: str) -> Source:
    if name not in DATASETS:
        raise ConfigError(f"there is no data set {name!r}. {nearest(name, DATASETS)}")
    return DATASETS[name]


def _list_data(console: Console, only: str | None = None) -> None:
    table = Table("data set", "what it is", "here?", "how the paper trains it")
    for name, source in {only: _source(only)}.items() if only else DATASETS.items():
        here = "yes" if source.home is None or source.home.present else "no"
        p = source.preset
        momentum = f", momentum {p.momentum:g}" + " Nesterov" * p.nesterov if p.momentum else ""
        how = f"{p.network}, {p.rounds} rounds, batch {p.batch_size}, lr {p.lr:g}{momentum}"
        table.add_row(name, source.about, here, how)
    console.print(table)
    console.print(f"They lie in {cache_folder()} (FEDSPARSIFY_DATA names another folder).", soft_wrap=True)
    console.print("Fetch one: fedsparsify data NAME --download. Your own: FILE.npz or module:function.")
