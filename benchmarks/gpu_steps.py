"""Time of one training step of a whole cohort on a GPU, and which kernels it goes to. Random data.

python benchmarks/gpu_steps.py [fc|cnn|vgg16]:PRECISION[:RUNS] … [--profile]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from fedsparsify import RunConfig
from fedsparsify.data import Dataset
from fedsparsify.federation.simulated import Simulated

DATA = {
    "fc": ("fashion-mnist", (1, 28, 28), 10, 60_000),
    "cnn": ("cifar10", (3, 32, 32), 10, 50_000),
    "vgg16": ("cifar100", (3, 32, 32), 100, 50_000),
}
OPERATIONS = {"fc": 118_016 * 6, "cnn": 696.9e6, "vgg16": 1.88e9}  # of one sample, forwards and backwards


def main(words: list[str]) -> None:
    """Time each network named."""
    for word in (w for w in words if not w.startswith("--")):
        network, precision, *more = word.split(":")
        runs = int(more[0]) if more else 1
        data, shape, classes, count = DATA[network]
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((count, *shape), np.float32), rng.integers(0, classes, count)
        config = RunConfig(data=data, precision=precision, device="cuda", sparsity=0.95)
        federation = Simulated(config, Dataset(data, x, y, x[:1000], y[:1000]))
        model = federation.initial()
        steps = config.epochs * -(-(count // 10) // config.batch_size)
        times = []
        for round in range(1, 5 if network != "vgg16" else 4):
            torch.cuda.synchronize()
            began = time.perf_counter()
            workers = [federation._worker(round, client, model) for _ in range(runs) for client in range(10)]
            fits = [next(config.method.client(round, model)) for _ in workers]
            federation.environment.cohort.fit(workers, fits)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        best = min(times[1:])
        rate = OPERATIONS[network] * config.batch_size * 10 * runs * steps / best / 1e12
        print(
            f"{word}: first round {times[0]:.2f} s, then {best:.3f} s: {best / steps * 1e6:.1f} µs a step, "
            f"{best * config.rounds:.1f} s of training in {config.rounds} rounds, about {rate:.0f} TFLOP/s, "
            f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
            flush=True,
        )
        if "--profile" in words:
            trainer = federation.environment.cohort.backend.trainers[0]
            trainer._warm = None  # step by step, so that kernels have names
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                federation.environment.cohort.fit(workers[:], [next(config.method.client(1, model)) for _ in workers])
                torch.cuda.synchronize()
            print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=18, max_name_column_width=44))
        del federation, x
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
