"""What commands that run for days print: a screen for a person at a terminal, a log for everything else.

In: lines of text, and of Flower's processes. Out: one line per message, with the time and a level, as text or JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import IO, Any, TypeVar

import click
from rich.table import Table

from ..errors import FedSparsifyError
from ..notices import Notice
from ..text import plain, visible
from .screen import Screen

LEVELS = {"yellow": "WARNING", "red": "ERROR"}  # by the colour that the message has on a terminal
LONGEST = 8000  # letters of a message
T = TypeVar("T", bound=Callable[..., object])


class LogScreen(Screen):
    """A screen whose output is a log. `event` adds fields to a line of JSON."""

    def __init__(self, form: str) -> None:
        super().__init__(terminal=False)  # no bars and no colours, also where a terminal shows the log
        self._form = form

    def print(self, *objects: Any, **more: Any) -> None:
        """Log texts; a table of two columns becomes one line per row."""
        style = more.get("style")
        for found in objects:
            if isinstance(found, Table):
                for name, value in zip(*(column.cells for column in found.columns), strict=True):
                    self.event(f"{name}: {value}", summary=str(name), value=str(value))
            else:
                self.event(str(found), style if isinstance(style, str) else "")

    def event(self, text: str, style: str = "", **fields: object) -> None:
        """Log a message."""
        self.log_line(LEVELS.get(style, "INFO"), text, fields)

    def show_command(self, command: str) -> None:
        """Log a command of another program that is about to run."""
        self.event(f"$ {command}", command=command)

    def log_line(self, level: str, text: str, fields: dict[str, object] | None = None) -> None:
        """Write one line, at once."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = visible(text.strip())[:LONGEST]
        if not said:
            return
        if self._form == "json":
            line = json.dumps({"time": time, "level": level, "message": said, **(fields or {})})
        else:
            line = f"{time} {level:7} {said}"
        self.file.write(f"{line}\n")
        self.file.flush()


@contextmanager
def redirected(log: LogScreen, to: IO[str]) -> Iterator[None]:
    """Let a log write elsewhere."""
    before, log.file = log.file, to
    try:
        yield
    finally:
        log.file = before


def with_log(command: T) -> T:
    """Give a command the flag `--log-format`, and a `console` that follows it.

    In a log, notices and the error that ends the command are lines like any other; the error goes to stderr.
    """

    @wraps(command)
    def run(*, log_format: str | None, **flags: Any) -> object:
        console = Screen()
        if log_format is None and console.is_terminal:
            return command(console=console, **flags)
        log, before = LogScreen(log_format or "text"), warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            kind = "Note" if issubclass(category, Notice) else category.__name__
            log.event(f"{kind}: {plain(message, LONGEST)}", "yellow")

        warnings.showwarning = show
        try:
            return command(console=log, **flags)
        except FedSparsifyError as error:
            with redirected(log, sys.stderr):
                log.event(f"{type(error).__name__}: {plain(error, LONGEST)}", "red", error=type(error).__name__)
            error.logged = True
            raise
        finally:
            warnings.showwarning = before

    choice = click.Choice(["text", "json"])
    help = "one line per message, with time and level  [default: text, but a terminal is shown a bar]"
    added: Callable[[T], T] = click.option("--log-format", type=choice, default=None, help=help)
    return added(run)  # type: ignore[arg-type]
