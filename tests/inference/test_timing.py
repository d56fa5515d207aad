"""The protocol that compares engines."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.inference.timing import compare


@pytest.mark.parametrize("streams", [1, 2])
def test_engines_take_turns_and_each_is_counted(streams: int) -> None:
    calls: list[str] = []
    batch = np.zeros((4, 1), np.float32)
    timings = compare({"a": lambda x: calls.append("a"), "b": lambda x: calls.append("b")}, batch, 0.01, 0, streams)
    assert set(timings) == set(calls) == {"a", "b"}
    for timing in timings.values():
        assert timing.iterations >= streams
        assert timing.items_per_second == pytest.approx(streams * len(batch) / (timing.latency_ms / 1e3))


def test_what_is_done_is_shown() -> None:
    done: list[float] = []
    compare({"a": lambda x: None}, np.zeros((4, 1), np.float32), 0.01, 0, 1, done.append)
    assert done == sorted(done)
    assert len(done) >= 2
