"""Two versions of the engine on the same models, taking turns: `versions.py OLD NEW --model FILE:SHAPE …`.

    git worktree add ../old COMMIT && python benchmarks/versions.py ../old . --batches 64 1 --threads 1 2

OLD and NEW are source trees. A cell is the median over turns of old over new, in brackets of the fastest tenths; above
1 the new version is faster. Without --model: the real models of the paper's networks in results/models.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from inference import HERE, Worker

REAL = [
    f"{HERE.parent}/results/models/{name}-{sparsity}.fsz:3x32x32"
    for name, sparsity in product(("cifar10-cnn", "cifar100-vgg16"), ("0.90", "0.95", "0.99"))
]


def fastest(times: list[float]) -> float:
    """The tenth of a turn's batches below which the fastest lie."""
    return float(np.quantile(times, 0.1))


def main() -> None:
    """Print a row per model, batch and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE")
    parser.add_argument("--model", nargs="*", default=REAL, help="FILE:SHAPE")
    parser.add_argument("--batches", nargs="*", type=int, default=[64, 1])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    options = parser.parse_args()
    print("| model | batch | threads | old, ms | new, ms | old over new |\n|---|---|---|---|---|---|")
    for text, batch, threads in product(options.model, options.batches, options.threads):
        path, _, shape = text.rpartition(":")
        words = (Path(path).resolve(), "-", shape, batch, threads)
        sides = [Worker("fedsparsify", sys.executable, *words, tree=tree.resolve()) for tree in options.trees]
        turns = [[side.ask(f"time {options.seconds}")["ms"] for side in sides] for _ in range(options.turns)]
        for side in sides:
            side.close()
        ratio = median(median(old) / median(new) for old, new in turns)
        best = median(fastest(old) / fastest(new) for old, new in turns)
        times = [median(median(turn[k]) for turn in turns) for k in range(2)]
        cells = [Path(path).stem, str(batch), str(threads), *(f"{ms:.4g}" for ms in times), f"{ratio:.3f} ({best:.3f})"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
