"""`fedsparsify export`: a model file in another format."""

from __future__ import annotations

from pathlib import Path

import click

from ..export import FORMATS, export
from .flags import PATH
from .screen import Screen


@click.command("export")
@click.argument("model", type=PATH)
@click.option("--to", required=True, type=click.Choice(list(FORMATS)), help="the other format")
@click.option("--out", type=PATH, help="where to write it  [default: beside the model]")
def command(model: Path, to: str, out: Path | None) -> None:
    """Write a model file in another format, with dense weights."""
    written = export(model, to, out)
    Screen().print(f"{written}: {written.stat().st_size:,} bytes", soft_wrap=True)
