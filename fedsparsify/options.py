"""A setting is declared once, as a dataclass field with a help text; config files, flags and `--help` read it there.

A setting is a bool, int, float or str, one of some words (`Literal`), or a tuple of one of these. With `| None` it may
also be None, which config files and flags write as "none".
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from .errors import ConfigError, nearest
from .toml import NONE

KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
RESERVED = ("name", "rounds")  # keys that every [method] table or method has already
SETTINGS = "\n\nSettings:\n"  # heading in a docstring


def option(default: Any, help: str, unset: str = "the data set's") -> Any:
    """A setting of a method: a field of its dataclass with a default and a help text.

    Args:
        default: the value if the user gives none; None stands for "unset" where the field's type allows it.
        help: what the setting means, in a few words. `--help`, `help(…)` and error messages show it.
        unset: what help texts say for a default of None.

    Returns:
        A dataclass field. Its annotation must be bool, int, float, str, a `Literal` of words, a tuple of one of
        these, or one of these with `| None`.

    Raises:
        ConfigError: when the class is made, if its type cannot be written in a config file.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedsparsify import Method, option
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Patient(Method):
        ...     'Prune late.'
        ...     wait: int = option(10, "rounds before the first purge")
        >>> Patient(wait=3)
        Patient(rounds=1, wait=3)
    """
    return dataclasses.field(default=default, metadata={"help": help, "unset": unset})


@dataclasses.dataclass(frozen=True)
class Setting:
    """An option as config files and flags see it."""

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    optional: bool = False  # may be None
    length: int | None = None  # of a tuple: its number of values; -1: any number
    unset: str = ""  # what a default of None stands for

    @property
    def shown_default(self) -> str:
        """The default as help texts show it."""
        return shown(self.default, self.unset)

    def read(self, value: object, where: str = "") -> Any:
        """The value in the setting's type, or an error that says what was received."""
        name = where + self.name
        if self.optional and (value is None or value == NONE):
            return None
        if self.length is None:
            return self._one(value, name, value)
        if isinstance(value, str) and self.length == -1 and self.type is str:
            value = [word.strip() for word in value.split(",") if word.strip()]
        if self.type in (int, float) and isinstance(value, str | list | tuple):
            value = self._numbers([value] if isinstance(value, str) else value)
        if not isinstance(value, list | tuple) or self.length not in (-1, len(value)):
            many = "a list" if self.length < 0 else f"a list of {self.length} values"
            raise ConfigError(f"{name} must be {many}. Received: {value!r}.")
        return tuple(self._one(one, name, value) for one in value)

    def is_default(self, value: object) -> bool:
        """Whether a value as a config file holds it is the setting's default."""
        written = list(self.default) if isinstance(self.default, tuple) else self.default
        return value in (self.default, written) or (self.default is None and value == NONE)

    def _numbers(self, values: Sequence[object]) -> Sequence[object]:
        """A list in which a flag's `1,28,28` are numbers; as it is where they are none."""
        words = [word for one in values for word in (one.split(",") if isinstance(one, str) else [one])]
        try:
            return [self.type(word) if isinstance(word, str) else word for word in words]
        except ValueError:
            return values

    def _one(self, value: object, name: str, received: object) -> Any:
        """One value in the setting's type."""
        if self.choices and value not in self.choices:
            raise ConfigError(f"{name} must be one of {', '.join(self.choices)}. Received: {received!r}.")
        if isinstance(value, self.type) and not (isinstance(value, bool) and self.type is not bool):
            return value
        if self.type is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023:
            return float(value)
        what = f"a list, each {KINDS[self.type]}" if self.length is not None else KINDS[self.type]
        raise ConfigError(f"{name} must be {what}{' or none' * self.optional}. Received: {received!r}.")


def shown(default: object, unset: str) -> str:
    """A default as help texts show it; `unset` in place of None."""
    if isinstance(default, tuple):
        return ", ".join(map(str, default)) or "none"
    if default is None:
        return unset
    return f"{default:g}" if isinstance(default, float) else str(default)


def complete_docstring(cls: type) -> None:
    """Append one line per option to a class's docstring, so that `help(cls)` says what each setting means."""
    inherited: dict[str, dataclasses.Field[Any]] = dict(getattr(cls, "__dataclass_fields__", {}))
    own = {name: field for name, field in vars(cls).items() if isinstance(field, dataclasses.Field)}
    lines = [
        f"    {name}: {field.metadata['help']}  [default: {shown(field.default, field.metadata['unset'])}]"
        for name, field in (inherited | own).items()
        if "help" in field.metadata
    ]
    if lines:
        text = inspect.cleandoc(cls.__doc__ or cls.__name__).partition(SETTINGS)[0]
        cls.__doc__ = f"{text}{SETTINGS}" + "\n".join(lines) + "\n"


def settings(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass that a user may set, by name."""
    if cls not in _KNOWN:
        hints = typing.get_type_hints(cls)
        _KNOWN[cls] = {
            field.name: _setting(cls, field.name, hints[field.name], field)
            for field in dataclasses.fields(cls)
            if "help" in field.metadata
        }
    return dict(_KNOWN[cls])


_KNOWN: WeakKeyDictionary[type, dict[str, Setting]] = WeakKeyDictionary()  # types take a millisecond to look up


def _setting(cls: type, name: str, hint: Any, field: Any) -> Setting:
    """A field as a setting, or an error if a config file cannot hold its type."""
    kind, length, optional = hint, None, False
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(kind) if one is not types.NoneType]
        optional = len(others) < len(typing.get_args(kind))
        kind = others[0] if len(others) == 1 else kind
    if typing.get_origin(kind) is tuple and (inner := typing.get_args(kind)):
        if len(inner) == 2 and inner[1] is Ellipsis:
            kind, length = inner[0], -1
        elif len(set(inner)) == 1:
            kind, length = inner[0], len(inner)
    choices: tuple[str, ...] = ()
    if typing.get_origin(kind) is typing.Literal and all(isinstance(word, str) for word in typing.get_args(kind)):
        kind, choices = str, typing.get_args(kind)
    if kind not in KINDS:
        shown = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
        raise ConfigError(
            f"the option {name!r} of {cls.__module__}.{cls.__qualname__} has a type that a config file cannot carry: "
            f"{shown}. Use bool, int, float, str, a Literal of words, a tuple of one of those, or one of them | None."
        )
    help, unset = field.metadata["help"], field.metadata["unset"]
    return Setting(name, kind, field.default, help, choices, optional, length, unset)


def check_options(cls: type) -> None:
    """Refuse, when a class is made, options that a config file cannot hold."""
    declared = {name: field for name, field in vars(cls).items() if "help" in getattr(field, "metadata", ())}
    if not declared:
        return
    where = f"of {cls.__module__}.{cls.__qualname__}"
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, SyntaxError) as error:
        raise ConfigError(f"the types of the options {where} cannot be found: {error}.") from error
    for name, field in declared.items():
        if name in RESERVED:
            raise ConfigError(f"the option {name!r} {where} must have another name: every method has this one already.")
        if name not in hints:
            raise ConfigError(f"the option {name!r} {where} has no type. Write {name}: float = option(…), for one.")
        setting = _setting(cls, name, hints[name], field)
        if field.default is not dataclasses.MISSING:
            setting.read(field.default, f"the default of {cls.__qualname__}.")


def read_settings(cls: type, values: Mapping[str, Any], what: str, where: str = "") -> dict[str, Any]:
    """Check names and types of `values` against the settings of `cls`."""
    known = settings(cls)
    for name in values:
        if name not in known:
            raise ConfigError(f"{what} has no setting {where + name!r}. {nearest(name, known)}")
    return {name: known[name].read(value, where) for name, value in values.items()}
