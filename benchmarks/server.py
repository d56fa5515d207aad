"""The server's work at VGG-16's size: `keep_top` and the mean of ten clients, beside numpy's own partition and a copy.

python benchmarks/server.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from fedsparsify import keep_top
from fedsparsify.average import Tally
from fedsparsify.model import Layout, SparseModel, TensorSpec

SIZE, CLIENTS, REPEATS = 14_774_436, 10, 5


def mean_of(model: SparseModel) -> SparseModel:
    """The mean of so many clients, as a stream."""
    tally = Tally()
    for _ in range(CLIENTS):
        tally.add(model, 1)
    return tally.mean()


def main() -> None:
    """Take turns and print medians."""
    weights = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    scores = np.abs(weights)
    model = SparseModel.dense(Layout((TensorSpec("w", (SIZE,)),)), weights)
    model = model.under(keep_top(scores, 0.9))
    sides: dict[str, Callable[[], object]] = {
        "keep_top, 0.9 of all": lambda: keep_top(scores, 0.9),
        "keep_top, from 0.9 to 0.95": lambda: keep_top(scores, 0.95, among=model.mask),
        "numpy.partition alone": lambda: np.partition(scores, int(0.9 * SIZE)),
        "a copy of the scores": scores.copy,
        f"mean of {CLIENTS} clients": lambda: mean_of(model),
        f"{CLIENTS} copies of the weights": lambda: [weights.copy() for _ in range(CLIENTS)],
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - began)
    for name, taken in times.items():
        print(f"{name:28s} {statistics.median(taken) * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
