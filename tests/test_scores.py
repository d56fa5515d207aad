from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsparsify import keep_top
from fedsparsify.errors import ConfigError, ModelError
from fedsparsify.scores import keep_count, magnitude, random_order

scores = hnp.arrays(np.float32, st.integers(1, 60), elements=st.integers(-4, 4).map(float))


def test_keeps_the_highest():
    assert keep_top([0.1, 0.4, 0.2, 0.3], 0.5).tolist() == [False, True, False, True]


def test_among_equals_the_lower_index_is_kept():
    assert keep_top([1, 1, 1, 1], 0.5).tolist() == [True, True, False, False]
    assert keep_top([1, 2, 1, 1, 0], 0.6).tolist() == [True, True, False, False, False]


def test_entries_already_pruned_count_and_never_return():
    among = np.array([True, False, True, True])
    assert keep_top([1, 9, 3, 2], 0.5, among).tolist() == [False, False, True, True]
    assert keep_top([1, 9, 3, 2], 0.25, among).tolist() == among.tolist()
    assert keep_top([1, 9, 3, 2], 0.0, among).tolist() == among.tolist()


def test_a_count_in_place_of_a_fraction():
    assert keep_count([1, 9, 3, 2], 2).tolist() == [False, True, True, False]
    assert keep_count([1, 9, 3, 2], 0).tolist() == [False] * 4
    assert keep_count([1, 9, 3, 2], 3, np.array([True, False, True, False])).tolist() == [True, False, True, False]


def test_infinite_scores_are_kept_to_the_last():
    assert keep_top([np.inf, 1, -np.inf], 0.67).tolist() == [True, False, False]


@given(scores, st.floats(0, 0.999))
def test_count_is_exact_and_nothing_kept_is_below_anything_pruned(values, sparsity):
    mask = keep_top(values, sparsity)
    assert np.count_nonzero(~mask) == int(sparsity * values.size)
    if (~mask).any():
        assert values[mask].min() >= values[~mask].max()


@given(scores, st.floats(0, 0.999), st.floats(0, 0.999))
def test_masks_are_nested(values, one, two):
    low, high = sorted((one, two))
    first = keep_top(values, low)
    second = keep_top(values, high, among=first)
    assert not (second & ~first).any()
    assert np.array_equal(second, keep_top(values, high))


@given(scores, st.floats(0, 0.999), st.floats(0, 0.9))
def test_tensors_give_the_same_mask_as_arrays(values, sparsity, before):
    torch = pytest.importorskip("torch")
    among = keep_top(values[::-1].copy(), before)
    found = keep_top(torch.from_numpy(values), sparsity, torch.from_numpy(among))
    assert found.tolist() == keep_top(values, sparsity, among).tolist()


def test_refusals():
    with pytest.raises(ConfigError, match=r"Did you mean 0\.9\?"):
        keep_top([1, 2], 90)
    with pytest.raises(ModelError, match="1 NaN of 2"):
        keep_top([1, np.nan], 0.5)
    with pytest.raises(ModelError, match="flat"):
        keep_top([[1, 2]], 0.5)


def test_magnitude_ignores_sign_and_statistics():
    assert magnitude(small_model([-3, 2], statistics=[9])).tolist() == [3, 2]


def test_random_order_covers_the_trainable_entries():
    draw = random_order(small_model([1, 2, 3], statistics=[9]), np.random.default_rng(0))
    assert draw.shape == (3,)
    assert len(set(draw.tolist())) == 3
