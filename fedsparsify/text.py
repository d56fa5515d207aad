"""Text from outside (names in files, runs, configs and messages), made safe for a line of output or a file's name."""

from __future__ import annotations

import hashlib
import re
import traceback

LIMIT = 200  # characters of a name on a screen, in a table, on a page


def visible(text: str, keep: str = "") -> str:
    """The text with every control, direction and other unprintable character spelled out, such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def plain(text: object, limit: int = LIMIT) -> str:
    """One line of at most `limit` characters, without control characters for a terminal.

    A longer text loses its middle.
    """
    whole = str(text)
    made = visible(whole if len(whole) <= 2 * limit else whole[:limit] + whole[-limit:])
    if len(made) <= limit and len(whole) <= 2 * limit:
        return made
    return f"{made[: limit * 2 // 3]}…{made[len(made) - (limit - limit * 2 // 3 - 1) :]}"


def file_name(text: str, limit: int = 120) -> str:
    """The text as a file's name: letters, digits and `._+-`; no separator, no `..`; a hash for a long end."""
    made = re.sub(r"\.{2,}", ".", re.sub(r"[^\w.+-]+", "-", text)).strip(".-") or "-"
    return shortened(made, limit)


def shortened(name: str, limit: int) -> str:
    """A name of at most `limit` bytes; one that was cut ends in a hash of the whole."""
    raw = name.encode("utf-8", "replace")
    if len(raw) <= limit:
        return name
    return f"{raw[: limit - 9].decode('utf-8', 'ignore')}-{digest(name)}"


def digest(text: str) -> str:
    """A hash of the text in eight letters."""
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()


def described(error: BaseException) -> str:
    """An error of a user's own code in a line: its class, what it says, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    if isinstance(error, SyntaxError):
        place = ""  # its text says where
    said = str(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}{place}"
