"""The paper's protocol for speed: warm up, then serve random batches for a fixed time, several streams at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from ..model import Floats

SLICE_SECONDS = 1.0  # engines take turns this long, so that a busy machine is busy for all of them


@dataclass(frozen=True)
class Timing:
    """What one engine did in its time."""

    latency_ms: float  # median of a batch
    iterations: int
    items_per_second: float  # of all streams, at that latency


def compare(
    engines: Mapping[str, Callable[[Floats], Any]],
    batch: Floats,
    seconds: float,
    warmup: float,
    streams: int,
    show: Callable[[float], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time engines in turns, each for `seconds` in all after `warmup` seconds. `show` is told the seconds done."""
    began = perf_counter()
    for run in engines.values():
        _serve(run, batch, warmup, streams)
        show(perf_counter() - began)
    latencies: dict[str, list[float]] = {name: [] for name in engines}
    spent = dict.fromkeys(engines, 0.0)
    while min(spent.values()) < seconds:
        for name, run in engines.items():
            started = perf_counter()
            latencies[name] += _serve(run, batch, min(SLICE_SECONDS, seconds - spent[name]), streams)
            spent[name] += perf_counter() - started
            show(perf_counter() - began)
    medians = {name: median(times) for name, times in latencies.items()}
    return {
        name: Timing(1e3 * took, len(latencies[name]), streams * len(batch) / took) for name, took in medians.items()
    }


def _serve(run: Callable[[Floats], Any], batch: Floats, seconds: float, streams: int) -> list[float]:
    """Seconds of each batch that `streams` threads serve; at least one batch each."""

    def stream(_: int) -> list[float]:
        times: list[float] = []
        end = perf_counter() + seconds
        while not times or perf_counter() < end:
            started = perf_counter()
            run(batch)
            times.append(perf_counter() - started)
        return times

    if streams == 1:
        return stream(0)
    with ThreadPoolExecutor(streams) as pool:
        return [time for times in pool.map(stream, range(streams)) for time in times]
