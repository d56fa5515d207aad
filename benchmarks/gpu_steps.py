"""Time of one training step of a whole cohort of ten clients on a GPU, and which kernels it goes to. Random data.

    python benchmarks/gpu_steps.py [fc|cnn|vgg16|resnet18|resnet18-gn][/BATCH]:PRECISION[:RUNS] … [--profile]
    python benchmarks/gpu_steps.py resnet18/16:bf16 resnet18/64:bf16 --rivals all

`--rivals` names other ways to train the same clients (`gpu_rivals.py`), or `all`; they and ours take turns. The floor
is the operations of all products over 790 TFLOP/s.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fedsparsify import RunConfig
from fedsparsify.data import Dataset
from fedsparsify.federation.simulated import Simulated

CLIENTS = 10
DATA = {  # data set, shape, classes, samples of all clients
    "fc": ("fashion-mnist", (1, 28, 28), 10, 60_000),
    "cnn": ("cifar10", (3, 32, 32), 10, 50_000),
    "vgg16": ("cifar100", (3, 32, 32), 100, 50_000),
    "resnet18": ("cifar10", (3, 32, 32), 10, 5_000),
    "resnet18-gn": ("cifar10", (3, 32, 32), 10, 5_000),
}
# Of one sample, forwards and backwards.
OPERATIONS = {"fc": 118_016 * 6, "cnn": 696.9e6, "vgg16": 1.88e9, "resnet18": 3.329e9, "resnet18-gn": 3.329e9}
PEAK = 790e12


def main() -> None:
    """Time each network named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rivals", default="", help="names of gpu_rivals.py, or all")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, help="of each client")
    words = parser.parse_args()
    for case in words.cases:
        measure(case, words)


def measure(case: str, words: argparse.Namespace) -> None:
    """One network: ours, and the rivals, in turns."""
    word, precision, *more = case.split(":")
    network, _, batch = word.partition("/")
    runs = int(more[0]) if more else 1
    data, shape, classes, count = DATA[network]
    count = CLIENTS * words.samples if words.samples else count
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((count, *shape), np.float32), rng.integers(0, classes, count)
    config = RunConfig(data=data, precision=precision, device=words.device, sparsity=0.95)
    if network.startswith("resnet"):
        config = replace(config, network=network, epochs=1, augment="none")
    if batch:
        config = replace(config, batch_size=int(batch))
    federation = Simulated(config, Dataset(data, x, y, x[:1000], y[:1000]))
    model = federation.initial()
    cohort = federation.environment.cohort
    steps = config.epochs * -(-(count // CLIENTS) // config.batch_size)

    def ours(round: int) -> None:
        workers = [federation._worker(round, client, model) for _ in range(runs) for client in range(CLIENTS)]
        cohort.fit(workers, [next(config.method.client(round, model)) for _ in workers])

    sides: dict[str, Callable[[int], None]] = {"ours": ours}
    if words.rivals:
        from gpu_rivals import sides_of

        sides |= sides_of(words.rivals, cohort.setup, config, CLIENTS)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round in range(words.turns + 1):
        for name in list(sides):
            try:
                times[name].append(seconds(sides[name], round + 1, words.device))
            except Exception as error:  # a rival may not know the network, or this machine
                print(f"{case} {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
                del sides[name], times[name]
    backend = cohort.backend.name
    operations = OPERATIONS[network] * (count // CLIENTS) * CLIENTS * runs * config.epochs
    for name, (first, *taken) in times.items():
        middle = statistics.median(taken)
        print(
            f"{case} {name}{f' ({backend})' if name == 'ours' else ''}: first round {first:.2f} s, then {middle:.3f} s "
            f"({min(taken):.3f} to {max(taken):.3f}): {middle / steps * 1e6:.1f} µs a step of all clients, "
            f"{operations / middle / 1e12:.1f} TFLOP/s, {middle / statistics.median(times['ours'][1:]):.2f}× ours",
            flush=True,
        )
    print(f"{case}: {steps} steps, floor {operations / PEAK / steps * 1e6:.1f} µs a step", flush=True)
    if words.device == "cuda":
        print(f"{case}: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most, of all sides", flush=True)
    if words.profile:
        cohort.backend.trainers[0]._warm = None  # step by step, so that kernels have names
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            ours(1)
            torch.cuda.synchronize()
        print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=18, max_name_column_width=44))
    if words.device == "cuda":
        torch.cuda.empty_cache()


def seconds(side: Callable[[int], None], round: int, device: str) -> float:
    """How long a side takes for a round, the GPU's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    side(round)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
