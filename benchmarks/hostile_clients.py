"""What hostile clients cost: accuracy by attack, number of hostile clients and merge rule, FashionMNIST at 0.95.

    python benchmarks/hostile_clients.py --rounds 20
    python benchmarks/hostile_clients.py --fill docs/robustness.md

Every run of a column has the same seed, data and honest clients. Finished runs are kept in the JSON file, and a second
call goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsparsify import Method, RunConfig, SparseModel, Update, load_dataset
from fedsparsify.aggregation import Aggregator
from fedsparsify.data import Dataset, partition
from fedsparsify.errors import ClientError
from fedsparsify.federation.environment import Environment
from fedsparsify.federation.ledger import Entry
from fedsparsify.federation.rounds import Evaluated, run_rounds
from fedsparsify.federation.simulated import Simulated
from fedsparsify.state import State

RULES = ("mean", "median", "trimmed", "geometric-median", "multi-krum")
HOSTILE = (9, 4, 0)  # the clients that attack, in this order
Attack = Callable[[Update, SparseModel, SparseModel], Update]  # (honest answer, round's model, first model) → answer


def moved(update: Update, model: SparseModel, factor: float) -> Update:
    """The honest update times a factor."""
    weights = model.host_weights + factor * (update.model.host_weights.astype(np.float64) - model.host_weights)
    return replaced(update, model, weights)


def replaced(update: Update, model: SparseModel, weights: NDArray[np.float64]) -> Update:
    """The update with other weights, on the device of the model."""
    made = SparseModel.masked(model.layout, weights.astype(np.float32), model.host_mask)
    return replace(update, model=made.beside(model.weights))


def random_weights(update: Update, model: SparseModel, first: SparseModel) -> Update:
    """Noise of the honest update's norm."""
    away = update.model.host_weights - model.host_weights
    noise = np.random.default_rng(update.client).standard_normal(away.size) * (model.host_weights != 0)
    noise *= np.linalg.norm(away) / np.linalg.norm(noise)
    return replaced(update, model, model.host_weights + noise)


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "×10⁶": lambda update, model, first: moved(update, model, 1e6),
    "sign flip ×20": lambda update, model, first: moved(update, model, -20.0),
    "sign flip ×1": lambda update, model, first: moved(update, model, -1.0),
    "sign flip ×20, 10¹² samples": lambda update, model, first: replace(moved(update, model, -20.0), samples=10**12),
    "NaN": lambda update, model, first: moved(update, model, float("nan")),
    "zero update": lambda update, model, first: replace(update, model=model),
    "random, same norm": random_weights,
    "stale model": lambda update, model, first: replace(update, model=first.under(model.mask)),
    "flipped labels": lambda update, model, first: update,  # its samples are changed instead
}


class UnderAttack:
    """A federation of which some clients answer with an attack."""

    def __init__(self, inner: Simulated, attack: Attack | None, hostile: tuple[int, ...]) -> None:
        self._inner, self._attack, self._hostile = inner, attack, hostile
        self._first: SparseModel | None = None

    def ask(self, method: Method, round: int, model: SparseModel, sent: State) -> Iterator[Update]:
        """The clients' answers, as they come."""
        self._first = self._first or model
        for update in self._inner.ask(method, round, model, sent):
            bad = self._attack and update.client in self._hostile
            yield self._attack(update, model, self._first) if bad and self._attack else update

    def evaluate(self, model: SparseModel) -> Evaluated:
        """Accuracy on the test samples."""
        return self._inner.evaluate(model)


def flipped(dataset: Dataset, config: RunConfig, hostile: tuple[int, ...]) -> Dataset:
    """The data set with label c of the hostile clients turned into 9 − c."""
    labels = dataset.y_train.copy()
    for client in hostile:
        mine = partition(dataset.y_train, config.clients, config.split, config.seed)[client]
        labels[mine] = dataset.classes - 1 - labels[mine]
    return replace(dataset, y_train=labels)


@cache
def environment(config: RunConfig, hostile: tuple[int, ...]) -> Environment:
    """Samples and back end, which runs with the same data share."""
    dataset = load_dataset(config.data)
    return Environment(config, flipped(dataset, config, hostile) if hostile else dataset)


def accuracy(config: RunConfig, dataset: Dataset, attack: str, count: int) -> dict[str, object]:
    """One run: its mean accuracy of the last three rounds, and what the ledger says of the hostile clients."""
    hostile = HOSTILE[:count]
    parts = partition(dataset.y_train, config.clients, config.split, config.seed)
    shared = environment(replace(config, merge="mean"), hostile if attack == "flipped labels" else ())
    federation = Simulated(config, dataset, shared)
    federation.parts = parts
    under = UnderAttack(federation, ATTACKS[attack], hostile)
    began = time.perf_counter()
    rounds = run_rounds(
        under, config.method, federation.initial(), 1, config.rounds, config.seed, aggregator=Aggregator(config)
    )
    history: list[Entry] = []
    try:
        for played in rounds:
            history.append(played.entry)
    except ClientError:  # all clients diverged from the model that was merged
        return {"accuracy": None, "rounds": len(history), "seconds": time.perf_counter() - began}
    medians = [np.median(entry.updates["norm"]) for entry in history]
    longest = [max(entry.updates["norm"]) / m for entry, m in zip(history, medians, strict=True) if m]
    return {
        "accuracy": float(np.mean([entry.accuracy for entry in history[-3:]])),
        "refused": sum(len(entry.refused) for entry in history),
        "bounded": sum(len(entry.bounded) for entry in history),
        "longest": float(max(longest)),
        "seconds": time.perf_counter() - began,
    }


def lost(run: dict[str, object] | None, honest: float) -> str:
    """Points of accuracy that a run lost; `ended` if it diverged."""
    if run is None:
        return "?"
    return "ended" if run["accuracy"] is None else f"{100 * (honest - float(str(run['accuracy']))):.1f}"


def table(found: dict[str, dict[str, object]]) -> str:
    """The table: points lost to the honest mean; attacks by rows, rules by columns, one / three hostile clients."""
    honest = float(str(found["none 0 mean"]["accuracy"]))
    lines = [f"Nobody attacks, mean: accuracy {honest:.4f}. Points lost to that:\n"]
    lines += ["| attack, by 1 / 3 of 10 clients | " + " | ".join(RULES) + " |", "|---|" + "---|" * len(RULES)]
    for attack in ATTACKS:
        cells = []
        for rule in RULES:
            runs = [found.get(f"{attack} {count} {rule}") for count in ((0,) if attack == "none" else (1, 3))]
            cells.append(" / ".join(lost(run, honest) for run in runs))
        if any(cell.strip("? /") for cell in cells):
            lines.append(f"| {attack} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fill(page: Path, text: str) -> None:
    """Put the table between the page's two comments."""
    head, begin, rest = page.read_text().partition("<!-- hostile clients -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    page.write_text(f"{head}{begin}{text}\n{end}{tail}")


def main() -> None:
    """Run what is missing, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--split", default="iid")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/hostile_clients.json"))
    parser.add_argument("--minutes", type=float, default=4.0, help="stop after so long; a second call goes on")
    parser.add_argument("--only", default="", help="attacks to run, separated by semicolons")
    parser.add_argument("--rules", default=",".join(RULES), help="rules to run, separated by commas")
    parser.add_argument("--counts", default="1,3", help="numbers of hostile clients")
    parser.add_argument("--fill", type=Path, help="write the table into this page, and run nothing")
    args = parser.parse_args()
    if args.fill:
        fill(args.fill, table(json.loads(args.out.read_text())))
        return
    found: dict[str, dict[str, object]] = json.loads(args.out.read_text()) if args.out.exists() else {}
    dataset, began = load_dataset("fashion-mnist"), time.monotonic()
    wanted = [
        (attack, count, rule)
        for attack in (args.only.split(";") if args.only else ATTACKS)
        for count in ((0,) if attack == "none" else map(int, args.counts.split(",")))
        for rule in args.rules.split(",")
    ]
    for attack, count, rule in wanted:
        name = f"{attack} {count} {rule}"
        if name in found:
            continue
        if time.monotonic() - began > 60 * args.minutes:
            print("stopped: call again for the rest")
            return
        config = RunConfig(
            data="fashion-mnist",
            sparsity=0.95,
            rounds=args.rounds,
            epochs=args.epochs,
            split=args.split,
            device=args.device,
            wire=False,
            merge=rule,
            max_samples=10_000,
        )
        found[name] = accuracy(config, dataset, attack, count)
        args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False))
        print(name, found[name], flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
