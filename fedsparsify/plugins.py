"""Things by name: one of ours, or a user's own as `module:attribute`."""

from __future__ import annotations

import importlib
import os
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ConfigError, FedSparsifyError, nearest
from .text import described


class ObjectName(str):
    """The name of an object that was given in Python and cannot be imported: a description, and the object.

    Config files hold the description. Two names are equal if their descriptions are, and the objects too unless the
    description is `exact`: it has a hash of the content.
    """

    value: Any
    exact: bool

    def __new__(cls, text: str, value: object, exact: bool = False) -> ObjectName:
        """Keep the object beside its description."""
        made = super().__new__(cls, text)
        made.value, made.exact = value, exact
        return made

    def __eq__(self, other: object) -> bool:
        same = str.__eq__(self, other) if isinstance(other, str) else False
        return same and (not isinstance(other, ObjectName) or self.exact or self.value is other.value)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectName, (str(self), self.value, self.exact)

    def __deepcopy__(self, _memo: object) -> ObjectName:
        return self


def describes_object(name: str) -> bool:
    """Whether a name is the description of an object."""
    return name.startswith("<")


def load_named(name: str, known: Mapping[str, object], what: str) -> Any:
    """`known[name]`, or the attribute that `module:attribute` names; modules are also looked for where you stand."""
    if isinstance(name, ObjectName):
        return name.value
    if name in known:
        return known[name]
    if describes_object(name):
        raise ConfigError(
            f"{what} {name} was given as an object in Python, and the config holds its description alone. Start or "
            f"resume the run from Python, with the same object; or put it into a module, and name it module:attribute."
        )
    if ":" not in name:
        near = f"{nearest(name, known)} " if known else ""
        raise ConfigError(f"there is no {what} {name!r}. {near}Your own is named module:attribute.")
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = module = importlib.import_module(module_name)
    except FedSparsifyError as error:
        raise ConfigError(f"{what} {name!r}: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{what} {name!r}: importing {module_name!r} raised {described(error)}.") from error
        raise ConfigError(f"{what} {name!r}: there is no module {module_name!r} on the path or in {here}") from error
    except Exception as error:
        raise ConfigError(f"{what} {name!r}: importing {module_name!r} raised {described(error)}.") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [word for word in vars(module) if not word.startswith("_")]
            where = getattr(module, "__file__", None) or f"module {module_name}"
            if module_name == "__main__" or "<" in attribute:
                raise ConfigError(
                    f"{what} {name!r} was defined in a script, a notebook or a function, where no other process finds "
                    f"it. Start or resume the run from there; or put it into a module, and name it module:attribute."
                )
            raise ConfigError(f"{what} {name!r}: {where} has no {attribute!r}. {nearest(attribute, public)}")
        found = getattr(found, part)
    return found


def call_named(function: Callable[..., Any], name: str, what: str, *arguments: object) -> Any:
    """What a user's function returns; what it raises is named, and chained."""
    if not callable(function):
        raise ConfigError(f"{what} {name!r} must name a function. Received: {type(function).__name__}.")
    try:
        return function(*arguments)
    except FedSparsifyError:
        raise
    except Exception as error:
        given = f"({', '.join(map(reprlib.repr, arguments))})"
        raise ConfigError(f"{what} {name!r}: {name}{given} raised {described(error)}.") from error
