"""`fedsparsify methods`: the methods and their settings."""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.table import Table

from ..methods import METHODS
from ..options import settings
from ..recipes import RECIPES, Recipe
from .screen import Screen


@click.command("methods")
def command() -> None:
    """List the methods with their settings, and the recipes."""
    table = Table("method", "what it does", "settings (default)")
    for name, kind in METHODS.items():
        known = [f"{one.name} ({one.shown_default})" for one in settings(kind).values()]
        table.add_row(name, (kind.__doc__ or "").split("\n")[0], "\n".join(known) or "–", end_section=True)
    Screen().print(table)
    Screen().print("Your own: a subclass of fedsparsify.Method, named module:Class.")
    recipes = Table("recipe", "what it is", "without batch norm", "with batch norm", title="run --recipe NAME")
    for name, recipe in RECIPES.items():
        recipes.add_row(name, recipe.about, *_columns(recipe), end_section=True)
    Screen().print(recipes)
    Screen().print("A setting that a run names wins over its recipe; what a method does not have is left out.")


def _columns(recipe: Recipe) -> tuple[str, str]:
    """The settings of a recipe, for networks without and with batch norm."""

    def lines(values: Mapping[str, object], where: str = "") -> list[str]:
        shown = {name: ", ".join(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return [f"{name.removeprefix('method.')} {value}{where}" for name, value in shown.items()]

    images = lines(recipe.images, " (colour images of 32 pixels and more)")
    large = lines(recipe.large, " (more than ten million parameters)")
    columns = lines(recipe.without_batch_norm), lines(recipe.with_batch_norm) + images + large
    without, having = ("\n".join(column) or "–" for column in columns)
    return without, having
