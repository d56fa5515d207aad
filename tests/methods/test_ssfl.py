"""SSFL by hand: the scores of all clients make one mask."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import kernel_model

from fedsparsify import RunConfig, run
from fedsparsify.errors import ConfigError
from fedsparsify.methods import SSFL, Score, Update

RNG = np.random.default_rng(0)
START = kernel_model([[1, -2, 3], [4, -5, 6]], [7, 8])


def scored(gradient, samples):
    client = SSFL(sparsity=0.5).client(0, START)
    request = next(client)
    assert isinstance(request, Score) and (request.by, request.samples) == ("gradient", 16)
    with pytest.raises(StopIteration) as done:
        client.send(Update(START, samples, scores=np.float32(gradient)))
    return done.value.value


def test_all_clients_score_and_the_mean_by_samples_decides():
    assert SSFL().cohort(0) == math.inf and SSFL().cohort(1) is None
    first = scored([1, 1, 1, 0, 0, 0, 9, 9], samples=1)
    assert first.scores.tolist() == [1, 2, 3, 0, 0, 0, 63, 72]
    assert first.model.pruned == 8  # no weights travel in round 0
    second = scored([0, 0, 0, -1, 0, 0, 0, 0], samples=3)
    # (1·[1, 2, 3, 0, 0, 0] + 3·[0, 0, 0, 4, 0, 0]) / 4: the fourth and the third stay, and both biases.
    merged = SSFL(sparsity=0.5).merge(0, START, iter([first, second]), RNG)
    assert merged.weights.tolist() == [0, 0, 3, 4, 0, 0, 7, 8]


def test_rounds_after_it_are_fedavg_under_that_mask():
    config = RunConfig(method={"name": "ssfl", "sparsity": 0.8}, rounds=10, epochs=2, clients=5, wire=True)
    result = run(config)
    zero, *rest = result.history
    dense = 4 * result.model.layout.total
    assert zero.round == 0 and zero.download_bytes > 5 * 0.8 * dense
    assert len({entry.nonzero for entry in rest}) == 1
    assert rest[1].download_bytes < rest[0].download_bytes  # the mask travels once
    assert rest[-1].accuracy > 0.8


def test_mistakes():
    with pytest.raises(ConfigError, match="Received: -1"):
        RunConfig(method={"name": "ssfl", "samples": -1})
