"""Amounts of memory, as people write them on a command line."""

from __future__ import annotations

import re
from fractions import Fraction

import click

UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, such as 2GB (10⁹), 1.5GiB (2³⁰) or 800000000."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes that `value` describes."""
        found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?\s*", str(value), re.IGNORECASE)
        if found is None or (found[3] and not found[2]):
            self.fail(f"a size reads like 2GB, 500MB or 1.5GiB. Received: {str(value)[:80]!r}.", param, ctx)
        made = int(Fraction(found[1]) * (1024 if found[3] else 1000) ** UNITS[found[2].upper()])
        if made < 1:
            self.fail(f"a size is at least one byte. Received: {str(value)[:80]!r}.", param, ctx)
        return made
