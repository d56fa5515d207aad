"""Flags that are made from the options of a dataclass, and flags that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..monitor.address import Address
from ..options import Setting, settings
from .size import Size

PATH = click.Path(path_type=Path)
PORT = click.IntRange(1, 65535)


class AddressType(click.ParamType):  # type: ignore[type-arg]
    """PORT, which is a port of this machine alone, or HOST:PORT."""

    name = "[HOST:]PORT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """The address."""
        return value if isinstance(value, Address) else Address.read(str(value))


METRICS = click.option(
    "--metrics", type=AddressType(), help="serve /metrics for Prometheus and /health, at 127.0.0.1 unless HOST is given"
)
PAGE_AT = click.option(
    "--page", type=AddressType(), help="serve a live page of the run, at 127.0.0.1 unless HOST is given"
)
MAX_MEMORY = click.option(
    "--max-memory",
    type=Size(),
    help="memory that the engine may take, such as 2GB  [default: half of the machine's]",
)
JSON_HELP = "one JSON object per round on stdout, as in history.jsonl; everything else on stderr"
OUTPUT = (
    click.Option(["--quiet", "-q"], is_flag=True, help="print warnings, errors and one line with the result"),
    click.Option(
        ["--json", "as_json"],
        is_flag=True,
        help=JSON_HELP,
    ),
)
Callback = TypeVar("Callback", bound=Callable[..., object])


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number; a whole one stays an integer, for settings that are whole in one method and fractions in another."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """The number that a text says."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)
        return int(value) if str(value).strip().lstrip("+-").isdecimal() else number


def flag(setting: Setting, group: str = "") -> click.Option:
    """A setting as a flag without a value of its own, so that config files and the data set's values show through."""
    dashed = setting.name.replace("_", "-")
    kind: Any = click.Choice(setting.choices) if setting.choices else setting.type
    kind = Number() if setting.type is float else kind
    help = f"{group}{setting.help}  [default: {setting.shown_default}]"
    if setting.type is bool:
        return click.Option([f"--{dashed}/--no-{dashed}", setting.name], default=None, help=help)
    if setting.length == -1:
        help = f"{help}  [may be given several times]"
        kind = str if setting.type in (int, float) else kind  # numbers may come as 1,28,28
        return click.Option([f"--{dashed}", setting.name], type=kind, default=None, multiple=True, help=help)
    nargs = setting.length or 1
    return click.Option([f"--{dashed}", setting.name], type=kind, default=None, nargs=nargs, help=help)


def with_output(command: click.Command) -> click.Command:
    """The command with `--quiet` and `--json`."""
    command.params.extend(OUTPUT)
    return command


def flags_of(kind: type) -> Callable[[Callback], Callback]:
    """A decorator that adds one flag per option of a dataclass, each with the option's default."""

    def add(command: Callback) -> Callback:
        for setting in reversed(settings(kind).values()):
            added = click.option(f"--{setting.name}", default=setting.default, show_default=True, help=setting.help)
            command = added(command)
        return command

    return add
