"""How long the sweeps of this folder take on one H200, from the figures in docs/performance.md: a Markdown table.

python experiments/rivals/plan.py
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

from fedsparsify.config import RunConfig, read_toml
from fedsparsify.federation.sweep import expand

SAMPLES = 50_000  # of CIFAR
# Operations of one sample, forwards and backwards, and the arithmetic that our kernels reach.
OPERATIONS = {"cnn": 0.697e9, "vgg16": 1.88e9, "resnet18": 3.34e9, "resnet18-gn": 3.34e9}
REACHED = {"cnn": 220e12, "vgg16": 267e12, "resnet18": 143e12, "resnet18-gn": 143e12}
WIDE = {"resnet18": 224e12}  # with 64 samples a batch
ROUND = 0.1  # seconds of merge and evaluation
ENCODED = 0.6  # seconds of encoding what travels in a round of `vgg16`


def seconds(config: RunConfig) -> float:
    """Of one run."""
    steps = config.epochs * ceil(SAMPLES / config.clients / config.batch_size)
    work = OPERATIONS[config.network] * config.batch_size * config.participants
    reached = (WIDE if config.batch_size >= 64 else {}).get(config.network, REACHED[config.network])
    return config.rounds * (steps * work / reached + ROUND + ENCODED * config.wire)


def rows(folder: Path) -> list[str]:
    """A row per sweep file: runs, and hours."""
    made = ["| file | runs | hours |", "|---|---:|---:|"]
    for path in sorted(folder.glob("*.toml")):
        runs = [planned.config for planned in expand(read_toml(path))]
        if runs[0].data.startswith("cifar"):
            hours = sum(seconds(run) for run in runs) / 3600
            made.append(f"| `{path.stem}` | {len(runs)} | {hours:.1f} |")
    return made


if __name__ == "__main__":
    print("\n".join(rows(Path(__file__).parent)))
