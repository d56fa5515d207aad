"""How long the sweeps of this folder take on one H200, from the figures in docs/performance.md: a Markdown table.

python experiments/rivals/plan.py
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

from fedsparsify.config import RunConfig, read_toml
from fedsparsify.federation.sweep import expand

SAMPLES = 50_000  # of CIFAR
# Operations of one sample, forwards and backwards, and the arithmetic that our kernels reached for `cnn` and `vgg16`.
OPERATIONS = {"cnn": 0.697e9, "vgg16": 1.88e9, "resnet18": 3.34e9, "resnet18-gn": 3.34e9}
REACHED = {"cnn": 220e12, "vgg16": 267e12}
# Seconds of one client's step in the plain loop: launches, which `cnn` has 21 layers and ResNet-18 66 modules of.
LAUNCHED = {"cnn": 2.5e-3, "vgg16": 5.0e-3, "resnet18": 8e-3, "resnet18-gn": 8e-3}
ROUND = 0.1  # seconds of merge and evaluation
ENCODED = 0.6  # seconds of encoding what travels in a round of `vgg16`
PRUNES_INPUTS = {"sparsyfed"}
TWICE = 4 / 3  # by autograd: a step that also computes each layer from its pruned inputs


def seconds(config: RunConfig, kernels: bool) -> float:
    """Of one run: by our kernels at the arithmetic of `vgg16`, or one client after another by autograd."""
    steps = config.epochs * ceil(SAMPLES / config.clients / config.batch_size)
    if kernels:
        work = OPERATIONS[config.network] * config.batch_size * config.participants
        step = work / REACHED.get(config.network, REACHED["vgg16"])
    else:
        step = LAUNCHED[config.network] * config.participants * (TWICE if config.method_name in PRUNES_INPUTS else 1)
    return config.rounds * (steps * step + ROUND + ENCODED * config.wire)


def rows(folder: Path) -> list[str]:
    """A row per sweep file: runs, and hours by either way."""
    made = ["| file | runs | hours, by our kernels | hours, by autograd |", "|---|---:|---:|---:|"]
    for path in sorted(folder.glob("*.toml")):
        runs = [planned.config for planned in expand(read_toml(path))]
        if runs[0].data.startswith("cifar"):
            fast, slow = (sum(seconds(run, kernels) for run in runs) / 3600 for kernels in (True, False))
            timed = runs[0].network in REACHED  # with our kernels, on a GPU
            made.append(f"| `{path.stem}` | {len(runs)} | {fast:.1f} | {'–' if timed else f'{slow:.1f}'} |")
    return made


if __name__ == "__main__":
    print("\n".join(rows(Path(__file__).parent)))
