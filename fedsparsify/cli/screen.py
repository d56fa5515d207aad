"""Where commands print: text is shown as it is, never taken for markup, and cannot steer the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..text import visible


class Screen(Console):
    """A console for text that others wrote. Every string, in tables too, passes through `render_str`."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **more: Any) -> Text:
        """The text with control characters spelled out; lines stay lines."""
        return super().render_str(visible(text, keep="\n"), **more)
