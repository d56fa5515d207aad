"""What the authors of other methods report (`authors.json`), for comparison with our runs of these methods."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from .environments import Environment


@cache
def _contents() -> Any:
    return json.loads((Path(__file__).parent / "authors.json").read_text())


def reported(environment: Environment) -> dict[tuple[str, float | None], float]:
    """Method and sparsity → the accuracy that was reported for this environment."""
    table = environment.table
    for one in _contents()["environments"]:
        if all(one[key] == table.get(key) for key in ("data", "split", "clients", "rounds")):
            return {(row["method"], row["sparsity"]): row["accuracy"] for row in one["rows"]}
    return {}
