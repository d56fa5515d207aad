"""Who stood out: each client over the rounds of a history.

In: the lines of a history file. Out: one row per client, those that stand out first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from ..text import plain
from .runs import ClientRow

LONG = 3.0  # medians: an update of this length stands out
APART = 0.3  # a mean cosine so far below the median of all clients stands out
HEAVY = 0.5  # share of all samples that stands out, among three clients and more


def client_rows(lines: Sequence[Mapping[str, Any]]) -> list[ClientRow]:
    """A row per client; empty if the history has no facts of clients. Damaged facts of a round are passed over."""
    seen: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for line in lines:
        columns = line.get("updates")
        if isinstance(columns, dict) and (rows := _rows(columns)):
            norms = [row[2] for row in rows.values() if row[2] > 0]
            median = float(np.median(norms)) if norms else 1.0
            for name, (samples, loss, norm, cosine) in rows.items():
                seen[name].append((samples, loss, norm / median, cosine))
    if not seen:
        return []
    refused, bounded = (_counted(line.get(key) for line in lines) for key in ("refused", "bounded"))
    names = sorted(seen.keys() | refused.keys() | bounded.keys(), key=lambda name: (len(name), name))
    means = {name: np.nanmean([row[3] for row in rows]) for name, rows in seen.items()}
    middle, total = float(np.median(list(means.values()))), sum(rows[-1][0] for rows in seen.values())
    made = []
    for name in names:
        facts = np.array(seen.get(name, []), np.float64).reshape(-1, 4)
        last = facts[-1] if len(facts) else np.full(4, np.nan)
        norm, cosine = (float(facts[:, i].mean()) if len(facts) else float("nan") for i in (2, 3))
        notes = [
            f"left out in {refused[name]} of {len(lines)} rounds" if name in refused else "",
            f"beyond a bound in {bounded[name]} of {len(lines)} rounds" if name in bounded else "",
            f"updates {norm:.3g} times as long as the median" if norm > LONG else "",
            "pulls away from the others" if cosine < middle - APART else "",
            f"holds {last[0] / total:.0%} of all samples" if len(seen) > 2 and last[0] > HEAVY * total else "",
        ]
        made.append(
            ClientRow(
                name=plain(name, 80),
                rounds=len(facts),
                samples=int(last[0]) if isfinite(last[0]) else 0,
                norm=_short(norm),
                cosine=_short(cosine),
                loss=_short(last[1]),
                refused=refused.get(name, 0),
                bounded=bounded.get(name, 0),
                notes=[note for note in notes if note],
            )
        )
    return sorted(made, key=lambda row: -len(row.notes))


def _rows(columns: Mapping[str, Any]) -> dict[str, tuple[float, float, float, float]]:
    """Client → samples, loss, norm and cosine of one round."""
    try:
        found = zip(*(columns[key] for key in ("client", "samples", "loss", "norm", "cosine")), strict=True)
        return {
            f"client {int(client)}": (float(samples), _float(loss), float(norm), float(cosine))
            for client, samples, loss, norm, cosine in found
            if all(isfinite(number) for number in (float(samples), float(norm), float(cosine)))
        }
    except (KeyError, TypeError, ValueError, OverflowError):
        return {}


def _counted(tables: Iterable[object]) -> dict[str, int]:
    """In how many rounds each client is named; what is said of another round counts for nobody."""
    counts: dict[str, int] = defaultdict(int)
    for table in tables:
        for name in table if isinstance(table, dict) else ():
            if name.removeprefix("client ").isdecimal():
                counts[name] += 1
    return dict(counts)


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if isfinite(value) else None
