"""Autotuning: how long a convolution takes on this machine with each of several kernels.

Input: the convolution, packed for each kernel. Output: seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from ...native.lines import zeros
from ..runtime.jobs import Jobs, JobWords
from ..runtime.native_calls import native_calls
from .encoding import encode, header_of
from .packed_layers import PackedLayer

TRIALS = 7
FAR_FLOATS = 1 << 20  # more than the second-level cache holds


def measure(layers: Sequence[PackedLayer], floats: int, lanes: int, far: bool) -> list[float]:
    """Seconds that each of some layers takes, on an arena of `floats` zeros; they take turns.

    `far`: a single sample finds the weights in no near cache, so that they are driven out first.
    """
    arena = zeros(floats + max(layer.workspace for layer in layers) + lanes)
    arena.fill(0)  # unwritten pages would all be one page, which caches take badly
    elsewhere = np.zeros(FAR_FLOATS if far else 1, np.float32)
    nothing = np.zeros(1, np.int32)
    times: list[list[float]] = [[] for _ in layers]
    execute = native_calls(lanes).execute
    for _ in range(TRIALS):
        for layer, seconds in zip(layers, times, strict=True):
            table = encode([replace(layer.row, workspace=floats)])
            stream, indices = (nothing if part is None else part for part in (layer.stream, layer.offsets))
            header = header_of(table, stream, layer.params, indices)
            jobs, address = Jobs.of([JobWords(header.ctypes.data, samples=1)]), arena.ctypes.data
            elsewhere += 1
            started = perf_counter()
            execute(jobs.address, 1, address, 0, 0)
            seconds.append(perf_counter() - started)
    return [min(seconds) for seconds in times]
