"""Perceptrons of several shapes on a CPU: our kernels beside stacked torch products, and the kernels' tiles alone.

    python benchmarks/perceptrons.py [--repeats 4]
    python benchmarks/perceptrons.py --tiles [--lanes 16]

One epoch of ten clients on random samples, plain SGD unless it says otherwise; both sides take turns in one process.
`--tiles`: GFLOP/s of one core on a batch of 32, 784 inputs and 128 outputs, forwards and for the gradient.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

CLIENTS = 10
SHAPES = [  # sizes of the layers, batch, samples a client, momentum
    ((784, 128, 128, 10), 32, 1000, 0.0),
    ((784, 128, 128, 10), 32, 1000, 0.9),
    ((3072, 1024, 1024, 10), 32, 100, 0.0),
    ((784, 200, 200, 62), 10, 300, 0.0),
    ((64, 128, 128, 10), 32, 140, 0.0),
    ((784, 128, 128, 10), 4, 300, 0.0),
    ((784, 128, 128, 10), 256, 2000, 0.0),
    ((784, 128, 128, 10), 2000, 2000, 0.0),
]
SIZES: tuple[int, ...] = ()


def network() -> Any:
    """The perceptron of the present sizes."""
    from torch import nn

    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(SIZES):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def compare(sizes: tuple[int, ...], batch: int, samples: int, momentum: float, repeats: int) -> dict[str, float]:
    """The shortest round of each side."""
    from fedsparsify import RunConfig
    from fedsparsify.data import Dataset
    from fedsparsify.federation.simulated import Simulated
    from fedsparsify.native.code_images import CodeImage

    global SIZES
    SIZES = sizes
    rng = np.random.default_rng(0)
    x = rng.random((CLIENTS * samples, sizes[0]), np.float32)
    data = Dataset("random", x, np.arange(len(x)) % sizes[-1], x[:10], np.arange(10))
    settings = {"network": "perceptrons:network", "epochs": 1, "clients": CLIENTS, "batch_size": batch, "lr": 0.02}
    config = RunConfig(method="fedavg", momentum=momentum, **settings)
    sides = {"ours": Simulated(config, data), "stacked": Simulated(config, data)}
    assert sides["ours"].environment.cohort.backend.name == "native"
    with patch.object(CodeImage, "__call__", side_effect=ImportError):
        assert sides["stacked"].environment.cohort.backend.name == "dense"
    start = sides["ours"].initial()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for round in range(repeats + 1):
        for name, federation in sides.items():
            began = time.perf_counter()
            list(federation.ask(config.method, round + 1, start))
            taken[name].append(time.perf_counter() - began)
    return {name: min(times[1:]) for name, times in taken.items()}


def tiles(lanes: int) -> None:
    """How fast the tiles are by themselves."""
    from numba import njit

    from fedsparsify.native.lines import zeros
    from fedsparsify.training.native.kernels import BLOCK, FOUR, HEIGHT
    from fedsparsify.training.native.layers import ROWS, panel_vectors
    from fedsparsify.training.native.simd import product_tile, update_tile

    rows, depth, outputs, times = 32, 784, 128, 200
    width, wide = (0,) * lanes, (0,) * panel_vectors(lanes)
    across, panels, step, one = 4 * lanes * len(wide), outputs // lanes // len(wide), 4 * outputs, np.float32(1e-9)

    @njit(error_model="numpy")
    def forwards(table: int, weights: int, out: int) -> None:
        for _ in range(times):
            for panel in range(panels):
                begin = weights + panel * (depth + 1) * across
                for k in range(0, depth, BLOCK):
                    count = min(BLOCK, depth - k)
                    for row in range(0, rows, ROWS):
                        at = out + panel * across + row * step
                        product_tile(
                            *(width, HEIGHT, wide, table + 8 * row, 4 * k, begin + k * across, count, at, step),
                            *(0, one, 0, at, step),
                        )

    @njit(error_model="numpy")
    def gradient(table: int, weights: int, out: int) -> None:
        for _ in range(times):
            for panel in range(panels):
                begin = weights + panel * (depth + 1) * across
                for k in range(0, depth, len(FOUR)):
                    update_tile(
                        *(width, FOUR, wide, table, rows, 4 * k, out + panel * across, step, begin + k * across),
                        *(0, 0, 0, 0, one, one, one, one),
                    )

    x = np.random.default_rng(0).random((rows, depth), np.float32)
    table = x.ctypes.data + 4 * depth * np.arange(rows)
    weights, out = zeros((depth + 1) * outputs), zeros(rows * outputs)

    def measure(function: Callable[..., None]) -> float:
        taken = []
        for _ in range(8):
            began = time.perf_counter()
            function(table.ctypes.data, weights.ctypes.data, out.ctypes.data)
            taken.append(time.perf_counter() - began)
        return 2 * rows * depth * outputs * times / min(taken) / 1e9

    print(f"{lanes} lanes: forwards {measure(forwards):.0f} GFLOP/s, gradient {measure(gradient):.0f} GFLOP/s")


def main() -> None:
    """Print a line a shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--lanes", type=int, default=16)
    words = parser.parse_args()
    if words.tiles:
        tiles(words.lanes)
        return
    for sizes, batch, samples, momentum in SHAPES:
        best = compare(sizes, batch, samples, momentum, words.repeats)
        layers = [inputs * outputs for inputs, outputs in pairwise(sizes)]
        flop = 2 * CLIENTS * samples * (3 * sum(layers) - layers[0])
        ours, stacked = best["ours"] * 1e3, best["stacked"] * 1e3
        print(f"{'-'.join(map(str, sizes)):20s} batch {batch:4d}, momentum {momentum}: ", end="")
        print(f"stacked {stacked:4.0f} ms, ours {ours:4.0f} ms, {stacked / ours:.2f}×, {flop / ours / 1e6:.0f} GFLOP/s")


if __name__ == "__main__":
    sys.modules["perceptrons"] = sys.modules["__main__"]
    main()
