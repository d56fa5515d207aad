"""What a layer costs on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from ...native.lines import zeros
from ..runtime.native_calls import native_code
from .layers import Layer
from .rows import Orders, header_of, table_of

TRIALS = 7
FAR_FLOATS = 1 << 20  # more than the second-level cache holds


def costs(layers: Sequence[Layer], ends: dict[str, Any], floats: int, lanes: int, far: bool) -> list[float]:
    """Seconds that each of some layers takes, on zeros; they take turns.

    `far`: a single image finds the weights in no near cache, so that they are driven out first.
    """
    arena = zeros(floats + max(layer.scratch for layer in layers) + lanes)
    arena.fill(0)  # unwritten pages would all be one page, which caches take badly
    elsewhere = np.zeros(FAR_FLOATS if far else 1, np.float32)
    nothing = np.zeros(1, np.int32)
    times: list[list[float]] = [[] for _ in layers]
    execute = native_code(lanes).execute
    for _ in range(TRIALS):
        for layer, seconds in zip(layers, times, strict=True):
            table = table_of([{**ends, **layer.fields, "kind": layer.kind, "second": floats}])
            stream, indices = (nothing if part is None else part for part in (layer.stream, layer.table))
            header = header_of(table, stream, layer.params, indices)
            orders, place = Orders.of([(header.ctypes.data, 0, 0, 0, 0, 1)]), arena.ctypes.data
            elsewhere += 1
            started = perf_counter()
            execute(orders.address, 1, place, 0, 0)
            seconds.append(perf_counter() - started)
    return [min(seconds) for seconds in times]
