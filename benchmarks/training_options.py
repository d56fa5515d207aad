"""What a falling learning rate and server momentum cost: whole runs with and without them, in turns, on random data.

python benchmarks/training_options.py [--device cpu] [--network fc] [--rounds 20] [--repeats 5]

Prints seconds per round of each and the ratio of their medians; the first round, which compiles, does not count.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

from fedsparsify import RunConfig, run
from fedsparsify.data import Dataset
from fedsparsify.federation.environment import Environment

SHAPES = {"fc": (1, 28, 28), "cnn": (3, 32, 32)}
SIDES = {
    "plain": ({}, {}),
    "cosine and server momentum": ({"lr_schedule": "cosine"}, {"server_optimizer": "momentum", "server_lr": 0.3}),
}


def main() -> None:
    """Time both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="fc", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--samples", type=int, default=60_000)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.random((given.samples, *SHAPES[given.network]), np.float32)
    dataset = Dataset("random", x, np.arange(len(x)) % 10, x[:1000], np.arange(1000) % 10)
    made = {}
    for name, (training, method) in SIDES.items():
        config = RunConfig(
            data="random:data",
            network=given.network,
            method={"name": "fedsparsify-global", **method},
            rounds=given.rounds,
            lr=0.02,
            batch_size=32,
            device=given.device,
            **training,
        )
        made[name] = config, Environment(config, dataset)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(given.repeats):
        for name, (config, environment) in made.items():
            history = run(config, dataset=dataset, environment=environment).history
            seconds[name].append(statistics.median(entry.seconds for entry in history[1:]))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name}: {1000 * value:.2f} ms per round")
    plain, other = medians.values()
    print(f"ratio: {other / plain:.3f}")


if __name__ == "__main__":
    main()
