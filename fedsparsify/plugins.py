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


def load_named(name: str, known: Mapping[str, object], what: str) -> Any:
    """`known[name]`, or the attribute that `module:attribute` names; modules are also looked for where you stand."""
    if name in known:
        return known[name]
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
