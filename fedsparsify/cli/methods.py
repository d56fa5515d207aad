"""`fedsparsify methods`: the methods and their settings."""

from __future__ import annotations

import click
from rich.table import Table

from ..methods import METHODS
from ..options import settings
from .screen import Screen


@click.command("methods")
def command() -> None:
    """List the methods and their settings."""
    table = Table("method", "what it does", "settings (default)")
    for name, kind in METHODS.items():
        known = [f"{one.name} ({one.shown_default})" for one in settings(kind).values()]
        table.add_row(name, (kind.__doc__ or "").split("\n")[0], "\n".join(known) or "–", end_section=True)
    Screen().print(table)
    Screen().print("Your own: a subclass of fedsparsify.Method, named module:Class.")
