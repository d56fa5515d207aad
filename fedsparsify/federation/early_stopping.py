"""Early stopping: a run ends when its metric no longer improves.

In: the rounds of a run, as they end. Out: the same rounds, up to the one at which the run stops; its entry says why.
Only rounds at the final sparsity count: a model that is still being pruned gets worse for another reason, and a denser
model's accuracy is none that the final one has to reach. The decision depends on the history alone, so that a resumed
run stops at the same round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..config import RunConfig
from ..errors import ConfigError
from ..methods import target_of
from ..notices import notice
from .client_views import lower_is_better
from .ledger import Entry
from .rounds import Played


def until_stopped(rounds: Iterable[Played], config: RunConfig, before: Sequence[Entry]) -> Iterator[Played]:
    """The rounds until the run stops, `before` being those of an earlier process."""
    if config.patience is None:
        yield from rounds
        return
    history = list(before)
    if history and history[-1].stopped:
        return
    for played in rounds:
        history.append(played.entry)
        reason = stopping_reason(config, history)
        yield played._replace(entry=replace(played.entry, stopped=reason))
        if reason:
            return


def stopping_reason(config: RunConfig, history: Sequence[Entry]) -> str:
    """Why the run stops after the last of these rounds; empty: it goes on."""
    if config.patience is None:
        return ""
    final, sign = target_of(config.method, config.rounds), -1 if lower_is_better(config.stop_on) else 1
    best, best_round, waited = math.nan, 0, 0
    for entry in history:
        if entry.round < 1 or entry.target_sparsity < final:
            continue
        value = _value(entry, config.stop_on)
        if math.isfinite(value) and not sign * value <= sign * best + config.min_delta:
            best, best_round, waited = value, entry.round, 0
        else:
            waited += 1
    if waited < config.patience:
        return ""
    by = f" by more than {config.min_delta:g}" if config.min_delta else ""
    known = f"best: {best:.4f} in round {best_round}" if best_round else "it is not a number"
    return f"{config.stop_on} has not improved{by} for {waited} rounds ({known})"


def _value(entry: Entry, metric: str) -> float:
    known = entry.metrics | {name: getattr(entry, name) for name in ("accuracy", "loss", "train_loss")}
    if known.get(metric) is None:
        measured = ", ".join(name for name, value in known.items() if value is not None)
        raise ConfigError(f"stop_on {metric!r} is not measured in this run. It has: {measured}.")
    return float(known[metric])


def check_patience(config: RunConfig) -> None:
    """Say so where a run cannot stop early: it is still being pruned, or has too few rounds left afterwards."""
    if config.patience is None:
        return
    final = target_of(config.method, config.rounds)
    settled = next(t for t in range(1, config.rounds + 1) if target_of(config.method, t) >= final)
    if settled + config.patience >= config.rounds:
        notice(
            f"patience {config.patience} has no effect: the final sparsity is reached in round {settled} of "
            f"{config.rounds}, and only rounds after it count. More rounds, less patience or a schedule that ends "
            f"earlier (--end) would let the run stop."
        )
