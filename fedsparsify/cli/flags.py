"""Flags that are made from the options of a dataclass, and flags that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..options import Setting, settings
from .size import Size

PATH = click.Path(path_type=Path)
MAX_MEMORY = click.option(
    "--max-memory",
    type=Size(),
    help="memory that the engine may take, such as 2GB  [default: half of the machine's]",
)
Callback = TypeVar("Callback", bound=Callable[..., object])


def flag(setting: Setting, group: str = "") -> click.Option:
    """A setting as a flag without a value of its own, so that config files and the data set's values show through."""
    dashed = setting.name.replace("_", "-")
    kind: Any = click.Choice(setting.choices) if setting.choices else setting.type
    help = f"{group}{setting.help}  [default: {setting.shown_default}]"
    if setting.type is bool:
        return click.Option([f"--{dashed}/--no-{dashed}", setting.name], default=None, help=help)
    return click.Option([f"--{dashed}", setting.name], type=kind, default=None, help=help)


def flags_of(kind: type) -> Callable[[Callback], Callback]:
    """A decorator that adds one flag per option of a dataclass, each with the option's default."""

    def add(command: Callback) -> Callback:
        for setting in reversed(settings(kind).values()):
            added = click.option(f"--{setting.name}", default=setting.default, show_default=True, help=setting.help)
            command = added(command)
        return command

    return add
