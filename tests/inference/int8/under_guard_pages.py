"""Integer networks between guard pages: a kernel that leaves its memory ends this process by a signal."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS), str(TESTS / "fuzz")]

import guard_pages  # noqa: E402
import test_int8  # noqa: E402

from fedsparsify.native.machine import lanes_here  # noqa: E402

for at_end in (False, True):
    guard_pages.install(at_end)
    for make in (test_int8.usual, test_int8.strided, test_int8.odd, test_int8.flat):
        for count in (16, 33):
            net = make()
            batch = guard_pages.guarded(count * int(np.prod(net.sample)), np.float32, at_end)
            batch[...] = np.sin(np.arange(batch.size))
            received, wanted = test_int8.in_integers(net, batch.reshape(count, *net.sample), lanes_here(), 1)
            assert np.array_equal(received, wanted)
    guard_pages.remove()
