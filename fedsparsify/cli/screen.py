"""Where commands print. Text is shown as it is: never read as markup, and without control characters."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..text import visible


class Screen(Console):
    """A console for text that others wrote. Every string, in tables too, passes through `render_str`."""

    def __init__(self, stderr: bool = False, terminal: bool | None = None) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False, force_terminal=terminal)

    def render_str(self, text: str, **more: Any) -> Text:
        """The text with control characters spelled out; line ends stay."""
        return super().render_str(visible(text, keep="\n"), **more)

    def show_command(self, command: str) -> None:
        """Print a command of another program that is about to run."""
        self.print(f"$ {command}", style="dim", soft_wrap=True)

    def event(self, text: str, style: str = "", **fields: object) -> None:
        """Print a message; a log also has its fields."""
        self.print(text, style=style or None)

    def log_line(self, level: str, text: str, fields: dict[str, object] | None = None) -> None:
        """Print a line of another process."""
        style = {"WARNING": "yellow", "ERROR": "red"}.get(level)
        self.print(text if level == "INFO" else f"{level}: {text}", style=style)

    def result(self, text: str) -> None:
        """Nothing: what `--quiet` leaves of the ending is part of what was printed already."""


class QuietScreen(Screen):
    """With `--quiet`: warnings and errors, on stderr; then the result, one line on stdout."""

    def print(self, *objects: Any, **more: Any) -> None:
        """Print what is yellow or red."""
        if more.get("style") in ("yellow", "red"):
            super().print(*objects, **more)

    @property
    def is_terminal(self) -> bool:
        """Not for bars."""
        return False

    def result(self, text: str) -> None:
        """Print the result."""
        print(visible(text))


def screen(quiet: bool, json: bool) -> Screen:
    """Where a command prints, with the flags of `OUTPUT`."""
    return QuietScreen(stderr=True) if quiet else Screen(stderr=json)
