from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsparsify import SparseModel, Update, majority, weighted
from fedsparsify.average import HolderTally, MeanOf, PooledTally, Tally
from fedsparsify.errors import ModelError
from fedsparsify.methods import FedSparsifyGlobal


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


def test_mean_over_holders():
    tally = HolderTally()
    tally.add(small_model([2, 0, 0], [1, 0, 0], statistics=[4]), 1)
    tally.add(small_model([6, 3, 0], [1, 1, 0], statistics=[8]), 3)
    mean = tally.mean()
    assert mean.weights.tolist() == [5, 3, 0, 7]
    assert mean.mask.tolist() == [True, True, False]
    assert tally.mean(np.array([True, False, True])).weights.tolist() == [5, 0, 0, 7]


def with_statistics(samples: np.ndarray) -> SparseModel:
    """A model whose batch norm saw these samples (many, 3), and one statistic that belongs to no batch norm."""
    moments = {"norm.running_mean": samples.mean(0), "norm.running_var": samples.var(0), "other.running_var": [4.0]}
    return SparseModel.of({"w": [1.0]}, moments)


@pytest.mark.parametrize("device", ["numpy", "torch"])
def test_pooled_variances_are_those_of_all_samples(device):
    rng = np.random.default_rng(0)
    parts = [rng.normal(shift, scale, (count, 3)) for shift, scale, count in ((-2, 1, 5), (0, 3, 40), (9, 0.1, 8))]
    tally = PooledTally()
    for part in parts:
        model = with_statistics(part)
        if device == "torch":
            torch = pytest.importorskip("torch")
            model = model.beside(torch.zeros(1))
        tally.add(model, len(part))
    found = tally.mean().host_tensors()
    everything = np.concatenate(parts)
    np.testing.assert_allclose(found["norm.running_mean"], everything.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["norm.running_var"], everything.var(0), rtol=1e-5)
    assert found["other.running_var"].tolist() == [4]
    assert found["w"].tolist() == [1]


def test_a_huge_mean_leaves_a_finite_variance():
    tally = PooledTally()
    for value in (0.0, 1e30):
        tally.add(SparseModel.of({"w": [1.0]}, {"norm.running_mean": [value], "norm.running_var": [1.0]}), 2)
    assert np.isfinite(tally.mean().host_tensors()["norm.running_var"]).all()


def test_a_method_pools_where_it_is_asked_to():
    updates = [Update(with_statistics(np.full((2, 3), value)), 2) for value in (1.0, 5.0)]
    rng = np.random.default_rng(0)
    for statistics, expected in (("mean", 0.0), ("pooled", 4.0)):
        method = FedSparsifyGlobal(sparsity=0.0, statistics=statistics)
        merged = method.merge(1, updates[0].model, iter(updates), rng)
        assert merged.host_tensors()["norm.running_var"].tolist() == [expected] * 3


def test_mean_of_arrays():
    mean = MeanOf()
    mean.add(np.float32([1, 2]), 1)
    mean.add(np.float32([5, 6]), 3)
    assert mean.value.tolist() == [4, 5]
    with pytest.raises(ModelError, match="no scores"):
        _ = MeanOf().value


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
