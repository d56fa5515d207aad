"""What an engine may take: refused before it is allocated, with exact sizes; offsets that 32 bits do not hold too."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fedsparsify.errors import ModelError
from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.inference.layout.memory_budget import MemoryBudget, OutOfMemory, size_of
from fedsparsify.inference.lowering.constants import ConstantPool, int32
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.native.machine import memory_here

MB = 10**6


def convolution(shape: tuple[int, ...], **attributes: Any) -> tuple[SparseModel, tuple[Node, ...]]:
    """A layer whose first and last weights are 1, the others 0."""
    layout = Layout((TensorSpec("w", shape),))
    weights = np.zeros(layout.total, np.float32)
    weights[[0, -1]] = 1
    given = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1} | attributes
    return SparseModel.masked(layout, weights, weights != 0), (Node("conv2d", "y", ("input",), {"weight": "w"}, given),)


def engine_of(*layer: Any, **settings: Any) -> Engine:
    model, graph = layer
    return Engine(model, settings.pop("threads", 1), graph, **settings)


def test_memory_by_hand() -> None:
    memory = MemoryBudget(1000)
    memory.take(600, "the first")
    with pytest.raises(ModelError) as error:
        memory.take(401, "layer 'x'")
    assert str(error.value) == (
        "layer 'x' needs 401 bytes of memory. An engine may take 1.0 KB, 600 bytes of which are taken; "
        "max_memory (--max-memory) sets another limit."
    )
    floats = memory.zeros(84, "the second")
    assert (floats.size, memory.taken) == (84, 1000)
    del floats
    assert memory.taken == 600


def test_the_usual_limit_is_half_of_the_machines_memory() -> None:
    assert MemoryBudget().limit == memory_here() // 2 > 0


def test_what_the_system_does_not_have_is_our_error() -> None:
    with pytest.raises(OutOfMemory, match="which the system does not have"):
        MemoryBudget(1 << 62).zeros(1 << 58, "a layer")


@pytest.mark.parametrize(
    ("amount", "said"), [(0, "0 bytes"), (999, "999 bytes"), (2 * 10**9, "2.0 GB"), (10**30, "EB")]
)
def test_sizes_are_readable(amount: int, said: str) -> None:
    assert said in size_of(amount)


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1, 1 << 40])
def test_no_offset_is_cut_to_32_bits(value: int) -> None:
    assert int32([value // abs(value) * (1 << 30)]).dtype == np.int32
    for encode in (lambda array: int32(array, "layer 'x'"), ConstantPool(np.int32).add):
        with pytest.raises(ModelError, match=r"needs an offset of .* which 32 bits do not hold"):
            encode(np.array([0, value]))


HOSTILE = """
import numpy as np
from test_memory import convolution, engine_of
from fedsparsify.errors import ModelError
for layer, sample in (
    (convolution((1, 840, 1, 1), padding=[100, 100], stride=[100, 100]), (840, 8, 8)),
    (convolution((1, 1000, 1, 1), padding=[0, 2200]), (1000, 1, 31000)),
    (convolution((1, 2, 3, 3), padding=[2**30, 0], dilation=[2**30, 1], stride=[2**30, 1]), (2, 3, 3)),
    (convolution((1, 1, 1, 1), padding=[0, 2**27], stride=[1, 2**27]), (1, 1, 1)),
):
    try:
        engine_of(*layer, lanes=16, max_memory=2**60).run(np.zeros((16, *sample), np.float32))
    except ModelError as error:
        print(error)
"""


def test_values_that_offsets_do_not_reach_are_refused() -> None:
    """Such files ended the process by a signal, as offsets were cut to 32 bits; in one of its own, if they still do."""
    ended = subprocess.run(
        [sys.executable, "-c", HOSTILE], cwd=__file__.rpartition("/")[0], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("offsets of 32 bits do not reach") == 4
    assert "the input (840 × 8 × 8) takes 2.2 GB with its border, in one piece" in ended.stdout
    assert "the input (1,000 × 1 × 31,000) takes 2.3 GB" in ended.stdout


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
@pytest.mark.parametrize(
    ("layer", "sample"),
    [
        (((64, 64, 3, 3), {"padding": [1, 1]}), (64, 24, 24)),  # Winograd
        (((4000, 300, 1, 1), {}), (300, 1, 1)),  # a product
        (((2, 2, 1, 1), {"padding": [60, 60]}), (2, 30, 30)),  # a border
        (((8, 1, 300, 300), {"padding": [150, 150], "stride": [99, 99]}), (1, 20, 20)),  # a large kernel
    ],
)
def test_nothing_is_allocated_beyond_the_limit(layer: Any, sample: Any, kernels: str) -> None:
    """From too little to enough: either it is refused, or all that was allocated fits."""
    model, graph = convolution(layer[0], **layer[1])
    batch = np.ones((3, *sample), np.float32)
    became = []
    for limit in (MB // 10, MB, 3 * MB, 10 * MB, 30 * MB, 100 * MB, 1000 * MB):
        tracemalloc.start()
        try:
            Engine(model, 1, graph, kernels=kernels, max_memory=limit).run(batch)
            became.append(True)
        except OutOfMemory:
            became.append(False)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < limit + MB // 2
    assert became == sorted(became)
    assert became[-1] and not became[0]


def test_fewer_threads_serve_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsparsify.inference.planner.DIVIDED_VECTORS", 0)  # as if it were large
    layer = convolution((8, 8, 3, 3), padding=[1, 1])
    batch = np.random.default_rng(0).standard_normal((64, 8, 40, 40)).astype(np.float32)
    alone = engine_of(*layer)
    expected = alone.run(batch)
    (program,) = alone._planner.programs.values()
    room = alone._memory.taken + batch.nbytes + 8 * program.bytes + 4 * program.arena_bytes
    for threads, used in ((2, 2), (64, 1)):
        engine = engine_of(*layer, threads=threads, max_memory=room)
        assert np.array_equal(engine.run(batch), expected)
        assert engine._plans[batch.shape].threads == used


def test_what_was_prepared_for_other_shapes_makes_room() -> None:
    layer = convolution((4, 4, 3, 3), padding=[1, 1])
    sides = range(20, 60, 4)
    batches = [np.random.default_rng(side).standard_normal((1, 4, side, side)).astype(np.float32) for side in sides]
    wanted = [engine_of(*layer).run(batch) for batch in batches]
    endless = engine_of(*layer)
    for batch in batches:
        endless.run(batch)
    engine = engine_of(*layer, max_memory=endless._memory.taken // 2)
    for _ in range(2):
        for batch, expected in zip(batches, wanted, strict=True):
            assert np.array_equal(engine.run(batch), expected)
            assert engine._memory.taken <= engine.max_memory
    assert len(engine._planner.programs) < len(batches)


def test_callers_at_a_time_share_one_limit() -> None:
    layer = convolution((4, 4, 3, 3), padding=[1, 1])
    engine = engine_of(*layer, max_memory=20 * MB)
    batch = np.ones((1, 4, 50, 50), np.float32)
    with ThreadPoolExecutor(8) as pool:
        assert len({made.tobytes() for made in pool.map(engine.run, [batch] * 64)}) == 1
    assert engine._memory.taken <= engine.max_memory


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2GB"])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(ModelError, match="max_memory is a number of bytes"):
        engine_of(*convolution((1, 1, 1, 1)), max_memory=limit)
