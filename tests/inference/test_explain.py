"""What the engine says of its stages, on a network of three nodes."""

from __future__ import annotations

import numpy as np
import pytest

from fedsparsify.graph import Node
from fedsparsify.inference import Engine
from fedsparsify.model import Layout, SparseModel, TensorSpec
from fedsparsify.native.machine import lanes_here

pytestmark = [] if lanes_here() == 16 else pytest.mark.slow  # other widths than this machine's are compiled first

STEPS = """\
steps: input is 1 × 8 × 8
  c: Conv(input) → 2 × 8 × 8, 2 of 18 weights
  p: Pool(c) → 2 × 4 × 4
"""
LAYOUT = """\
  level of 4 × 4 blocks, samples at a time: 1
    input: 1 × 8 × 8 in blocks of 2 × 2, halo [1, 1] [1, 1], from float 16
"""


def engine() -> Engine:
    weight = np.zeros((2, 1, 3, 3), np.float32)
    weight[0, 0, 1, 1], weight[1, 0, 0, 0] = 2, 1
    model = SparseModel(Layout((TensorSpec("c.weight", weight.shape),), ()), weight.ravel(), weight.ravel() != 0)
    unit, pool = [1, 1], {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil": False}
    attributes = {"stride": unit, "padding": unit, "dilation": unit, "groups": 1}
    nodes = [
        Node("conv2d", "c", ("input",), {"weight": "c.weight"}, attributes),
        Node("relu", "r", ("c",)),
        Node("max_pool2d", "p", ("r",), {}, pool),
    ]
    return Engine(model, 1, nodes, lanes=16, kernels="sparse")


def test_each_stage_is_shown() -> None:
    text = engine().explain((1, 1, 8, 8))
    assert text.startswith(STEPS)
    assert LAYOUT in text
    rows = text.partition("rows of worker 0:\n")[2].splitlines()
    assert [row.split()[0] for row in rows] == ["PACK", "HALO", "SPARSE", "UNPACK"]
    assert "clamp=(0.0,inf) pooled=True" in rows[2]


def test_explaining_changes_nothing() -> None:
    batch = np.random.default_rng(0).standard_normal((9, 1, 8, 8)).astype(np.float32)
    usual, explained = engine(), engine()
    expected = usual.run(batch)
    assert "program for samples: 16, workers: 1" in explained.explain(batch.shape)
    taken = explained._memory.taken
    explained.explain(batch.shape)
    assert explained._memory.taken == taken
    assert np.array_equal(explained.run(batch), expected)
