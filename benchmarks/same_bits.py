"""Hashes of logits, to compare two versions of the engine: `same_bits.py [NETWORKS] [--seed N] > bits.txt`, then diff.

Every line names a network, a batch, a thread count and the choice of kernels. With `sparse` and `dense` the choice does
not depend on timing, so that equal engines print equal hashes. The models of results/models, then random networks.
"""

from __future__ import annotations

import argparse
import sys
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))

from random_graphs import Graph, draw, quick  # noqa: E402

from fedsparsify.errors import ModelError  # noqa: E402
from fedsparsify.inference import Engine, planner  # noqa: E402

BATCHES, THREADS, KERNELS = (1, 3, 64), (1, 2), ("sparse", "dense")
MOST_MEMORY = 10**9  # bytes
SHAPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


def hashed(made: Engine, sample: tuple[int, ...], samples: int) -> str:
    """The hash of the logits of a fixed batch, or the reason for which it was refused."""
    batch = np.random.default_rng(samples).standard_normal((samples, *sample), np.float32)
    try:
        return sha256(made.run(batch).tobytes()).hexdigest()[:16]
    except ModelError as error:
        return f"refused: {error}"


def models() -> None:
    """The models of results/models."""
    for path in sorted((ROOT / "results" / "models").glob("*.fsz")):
        sample = SHAPES[path.name.split("-cnn")[0].split("-vgg16")[0].split("-fc")[0]]
        for kernels in KERNELS:
            for threads in THREADS:
                made = Engine(path, threads, kernels=kernels)
                for samples in BATCHES:
                    print(path.stem, samples, threads, kernels, hashed(made, sample, samples), flush=True)


def drawn(seed: int, number: int) -> Graph:
    """A random network that runs in a moment."""
    rng = Random(f"{seed}/{number}")
    while True:
        graph = draw(rng)
        if graph.nodes and quick(graph, 1):
            return graph


def networks(count: int, seed: int) -> None:
    """Random networks; every second one is divided among threads as if it were large."""
    thresholds = {name: getattr(planner, name) for name in dir(planner) if name.endswith("_VECTORS")}
    for number in range(count):
        for name, usual in thresholds.items():
            setattr(planner, name, 0 if number % 2 else usual)
        graph = drawn(seed, number)
        for kernels in KERNELS:
            for threads in THREADS:
                try:
                    lanes = (16, 8, 4)[number % 3]
                    made = Engine(graph.model, threads, graph.nodes, lanes, kernels, MOST_MEMORY)
                except ModelError as error:
                    print(f"network-{number}", threads, kernels, f"refused: {error}", flush=True)
                    continue
                for samples in BATCHES:
                    if quick(graph, samples):
                        found = hashed(made, graph.sample, samples)
                        print(f"network-{number}", samples, threads, kernels, found, flush=True)


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=18)
    arguments = parser.parse_args()
    models()
    networks(arguments.networks, arguments.seed)


if __name__ == "__main__":
    main()
