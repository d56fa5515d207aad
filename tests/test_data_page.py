"""The tables of docs/data.md name every loss, metric and split."""

from __future__ import annotations

import re
from pathlib import Path

from fedsparsify.data.partition import KINDS
from fedsparsify.tasks import DEFAULTS, LOSSES, METRICS

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text()


def test_every_name_is_in_its_row():
    for name in (*LOSSES, *METRICS, *KINDS.values()):
        assert f"`{name}`" in PAGE, name
    for targets in DEFAULTS:
        row = next(row for row in PAGE.splitlines() if row.startswith(f"| {targets} | `"))
        listed, usual = (re.findall(r"`([\w-]+)`", cell) for cell in row.split("|")[2:4])
        assert {*listed} == {name for name, about in METRICS.items() if targets in about.targets}
        assert tuple(usual) == DEFAULTS[targets]
