"""The cells of the paper's tables (`paper.json`), for comparison with ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .environments import Environment


@dataclass(frozen=True)
class Printed:
    """A row of one of the paper's tables."""

    sparsity: float
    accuracy: float
    params: int
    size_mb: float
    cost_mm: float
    latency_ms: float
    iterations: int
    throughput: int


@cache
def _contents() -> Any:
    return json.loads((Path(__file__).parent / "paper.json").read_text())


def printed_rows(environment: Environment) -> list[Printed]:
    """The rows of the paper's table for this environment; none if it has no table."""
    table = environment.table
    for one in _contents()["tables"]:
        same = all(one[key] == table.get(key) for key in ("data", "clients", "split"))
        if same and table.get("participation", 1.0) == 1.0 and table.get("epochs") == 4:
            return [Printed(**row) for row in one["rows"]]
    return []


def source() -> str:
    """Where the figures come from."""
    return str(_contents()["source"])
