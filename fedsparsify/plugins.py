"""Things by name: one of ours, or a user's own as `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError, nearest


def load_named(name: str, known: Mapping[str, Any], what: str) -> Any:
    """`known[name]`, or the attribute that `module:attribute` names; modules are also looked for where you stand."""
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(f"there is no {what} {name!r}. {nearest(name, known)} Your own is named module:attribute.")
    module_name, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise ConfigError(f"{what} {name!r}: there is no module {module_name!r} on the path or in {here}") from error
    if not hasattr(module, attribute):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ConfigError(f"{what} {name!r}: {module.__file__} has no {attribute!r}. {nearest(attribute, public)}")
    return getattr(module, attribute)
