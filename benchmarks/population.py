"""What a large population costs: rounds of 10 clients out of 100, 1,000 and 10,000, each holding 60 samples.

    python benchmarks/population.py [--rounds 20]

Seconds a round (median) and how much the process grew while it played. The clients of a round are the same
number with the same number of samples, so only what grows with the population can make a difference.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import resource
import statistics

import numpy as np

EACH = 60


def play(clients: int, rounds: int) -> tuple[float, float]:
    """Median seconds a round, and MB that the process grew by while it played."""
    from fedsparsify import RunConfig
    from fedsparsify.data import Dataset
    from fedsparsify.federation.rounds import run_rounds
    from fedsparsify.federation.simulated import Simulated

    rng = np.random.default_rng(0)
    # One table of pictures that all populations share, so that memory is not the data set's.
    x = np.broadcast_to(rng.random((1, 1, 28, 28), np.float32), (clients * EACH, 1, 28, 28))
    y = rng.integers(0, 10, clients * EACH)
    config = RunConfig(data="fashion-mnist", rounds=rounds, clients=clients, participation=10 / clients)
    federation = Simulated(config, Dataset("random", x, y, x[:100], y[:100]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    entries = [entry for _, entry, _ in run_rounds(federation, config.method, federation.initial(), 1, rounds, 0)]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return statistics.median(entry.seconds for entry in entries[1:]), (after - before) / 1024


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    found: dict[int, list[tuple[float, float]]] = {100: [], 1_000: [], 10_000: []}
    for _ in range(3):
        for clients in found:
            with mp.get_context("spawn").Pool(1) as pool:
                found[clients].append(pool.apply(play, (clients, rounds)))
    first = statistics.median(seconds for seconds, _ in found[100])
    for clients, taken in found.items():
        seconds = statistics.median(s for s, _ in taken)
        grown = statistics.median(m for _, m in taken)
        speed = f"{seconds * 1e3:7.1f} ms a round ({seconds / first:.2f}×)"
        print(f"{clients:6,} clients: {speed}, {grown:6.1f} MB more")


if __name__ == "__main__":
    main()
