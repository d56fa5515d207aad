"""A setting is declared once, as a dataclass field with its help; config files, flags and `--help` read it there."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from .errors import ConfigError, nearest


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field that knows what it is for."""
    return dataclasses.field(default=default, metadata={"help": help, **more})


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field as a config file or a flag sees it."""

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()

    def read(self, value: Any, where: str = "") -> Any:
        """The value in its own type, or an error that says what was received."""
        name = where + self.name
        if self.choices and value not in self.choices:
            raise ConfigError(f"{name} must be one of {', '.join(self.choices)}. Received: {value!r}.")
        if isinstance(value, self.type) and not (isinstance(value, bool) and self.type is not bool):
            return value
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        article = "an" if self.type is int else "a"
        kinds = {int: "integer", float: "number", bool: "true or false", str: "text"}
        kind = kinds.get(self.type, self.type.__name__)
        raise ConfigError(f"{name} must be {article} {kind}. Received: {value!r}.".replace("a true", "true"))


def settings(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass that a user may set, by name."""
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        kind, choices = hints[field.name], ()
        if typing.get_origin(kind) is typing.Literal:
            kind, choices = str, typing.get_args(kind)
        found[field.name] = Setting(field.name, kind, field.default, field.metadata["help"], choices)
    return found


def read_settings(cls: type, values: dict[str, Any], what: str, where: str = "") -> dict[str, Any]:
    """Check names and types of `values` against the settings of `cls`."""
    known = settings(cls)
    for name in values:
        if name not in known:
            raise ConfigError(f"{what} has no setting {where + name!r}. {nearest(name, known)}")
    return {name: known[name].read(value, where) for name, value in values.items()}
