"""Run the variants of a file and write down the mean accuracy of each run's last ten rounds, with its bytes.

python experiments/plus/search.py experiments/plus/VARIANTS.toml OUT.json [--device cuda] [--only NAME …] [--last N]

The file has settings that all runs share, and a table per variant. Lists in `[sweep]` and in a variant's `sweep` are
combined; the runs of a variant are trained as one stack. Results are written after each variant: nothing is lost when
time runs out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # validation.py

from fedsparsify.federation.ledger import read_history
from fedsparsify.federation.sweep import expand, sweep
from fedsparsify.methods import Method

LAST = 10


def joined(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """One table over another; tables inside are joined too."""
    made = dict(base)
    for name, value in more.items():
        both = isinstance(value, Mapping) and isinstance(made.get(name), Mapping)
        made[name] = joined(made[name], value) if both else value
    return made


def settings_that_differ(method: Method) -> dict[str, Any]:
    """A method's settings that are not its defaults."""
    return {
        one.name: value
        for one in fields(method)
        if one.name != "rounds" and (value := getattr(method, one.name)) != one.default
    }


def main() -> None:
    """Run all variants of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--last", type=int, default=LAST, help="rounds that an accuracy is the mean of")
    parser.add_argument("--keep", type=Path, help="folder for the runs; they are thrown away without it")
    given = parser.parse_args()
    table = tomllib.loads(given.file.read_text())
    variants = table.pop("variant")
    found: list[dict[str, Any]] = []
    for name, changes in variants.items():
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = (given.keep or Path(scratch)) / name
            runs = expand(joined(joined(table, changes), {"device": given.device, "checkpoint_every": 1000}))
            began = time.perf_counter()
            sweep(runs, folder)
            seconds = time.perf_counter() - began
            for planned in runs:
                history = read_history(folder / planned.name / "history.jsonl")
                accuracy = [entry.accuracy for entry in history]
                sent = sum((entry.download_bytes or 0) + (entry.upload_bytes or 0) for entry in history)
                found.append(
                    {
                        "variant": name,
                        "run": planned.name,
                        "seed": planned.config.seed,
                        "method": settings_that_differ(planned.config.method),
                        "accuracy": sum(accuracy[-given.last :]) / given.last,
                        "history": [round(value, 4) for value in accuracy],
                        "lowest": min(accuracy[len(accuracy) // 2 :]),
                        "last": accuracy[-1],
                        "train_loss": [round(entry.train_loss or 0.0, 4) for entry in history][-given.last :],
                        "bytes": sent,
                        "paper_params": sum(entry.paper_params for entry in history),
                        "seconds": seconds / len(runs),
                    }
                )
                told = {key: found[-1][key] for key in ("accuracy", "last", "train_loss", "seed", "method")}
                print(name, told, f"{seconds / len(runs):.1f} s", flush=True)
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
