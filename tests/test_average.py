from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsparsify import majority, weighted
from fedsparsify.average import Tally
from fedsparsify.errors import ModelError


def test_weighted_mean_of_weights_and_statistics():
    mean = weighted([small_model([1, 2], statistics=[4]), small_model([5, 6], statistics=[8])], [3, 1])
    assert mean.weights.tolist() == [2, 3, 5]


def test_the_mean_includes_the_zeros_of_clients_that_pruned_the_entry():
    mean = weighted([small_model([0, 2], [False, True]), small_model([4, 2])], [1, 1])
    assert mean.weights.tolist() == [2, 2]
    assert mean.mask.tolist() == [True, True]


def test_equation_3_keeps_on_a_tie_and_counts_an_odd_cohort_exactly():
    a, b, c = np.array([True, True, False]), np.array([True, False, False]), np.array([True, False, True])
    assert majority([a, b]).tolist() == [True, True, False]
    assert majority([a, b, c]).tolist() == [True, False, False]


def test_mean_under_the_majority():
    tally = Tally()
    for model in (
        small_model([2, 2, 0], [1, 1, 0]),
        small_model([4, 0, 0], [1, 0, 0]),
        small_model([6, 0, 3], [1, 0, 1]),
    ):
        tally.add(model, 1)
    mean = tally.mean(tally.majority())
    assert mean.weights.tolist() == [4, 0, 0]
    assert mean.mask.tolist() == [True, False, False]


def test_a_stream_is_enough():
    models = (small_model([value]) for value in (1, 2, 3))
    assert weighted(models, [1, 1, 1]).weights.tolist() == [2]


@given(hnp.arrays(np.float32, (5, 7), elements=st.floats(-10, 10, width=32)), st.permutations(range(5)))
def test_the_order_of_answers_hardly_matters(rows, order):
    models = [small_model(row) for row in rows]
    samples = [1, 20, 300, 4, 50]
    one = weighted(models, samples).weights
    two = weighted([models[i] for i in order], [samples[i] for i in order]).weights
    assert np.allclose(one, two, rtol=2e-7, atol=1e-12)


def test_refusals():
    with pytest.raises(ModelError, match="no model"):
        weighted([], [])
    with pytest.raises(ModelError, match="no mask"):
        majority([])
    with pytest.raises(ModelError, match="positive"):
        weighted([small_model([1])], [0])
    with pytest.raises(ModelError, match="layouts"):
        weighted([small_model([1]), small_model([1, 2])], [1, 1])
