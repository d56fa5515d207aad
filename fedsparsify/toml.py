"""TOML as config files hold it: written so that `tomllib` reads the same values back, on a machine without a writer."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

NONE = "none"  # TOML has no null: a setting that may be None is written, and read, as this word
BARE = re.compile(r"[A-Za-z0-9_-]+")
# What versions before this one wrote for infinities and None, which is not TOML.
OLD = re.compile(r"^([\w-]+ = )(-?Infinity|NaN|null)$", re.MULTILINE)
OLD_WORDS = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan", "null": f'"{NONE}"'}


def loads(text: str) -> dict[str, Any]:
    """The table that a config file's text holds; also one that an earlier version wrote."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        mended, count = OLD.subn(lambda found: found[1] + OLD_WORDS[found[2]], text)
        if not count:
            raise
        return tomllib.loads(mended)


def dumps(table: Mapping[str, object]) -> str:
    """The text of a table of plain values; tables inside it follow them."""
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    lines = [assignment(name, value) for name, value in table.items() if name not in inner]
    for name, values in inner.items():
        lines += ["", f"[{key(name)}]", *(assignment(*item) for item in values.items())]
    return "\n".join(lines) + "\n"


def assignment(name: str, value: object) -> str:
    """One line of a config file."""
    return f"{key(name)} = {literal(value, name)}"


def key(name: str) -> str:
    """A key as TOML writes it, in quotes where it needs them."""
    return name if BARE.fullmatch(name) else _text(name, name)


def literal(value: object, name: str = "a setting") -> str:
    """A value as TOML writes it."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else str(float(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(one, name) for one in value) + "]"
    raise ConfigError(f"{name} cannot be written to a config file. Received: {value!r}, of {type(value).__name__}.")


def _text(text: str, name: str) -> str:
    """A basic string. JSON escapes what TOML does, but for DEL; TOML cannot hold half of a surrogate pair."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{name} must be Unicode text. Received: {text!r}, with half of a surrogate pair.")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
