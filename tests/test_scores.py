from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from conftest import kernel_model, small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsparsify import keep_top
from fedsparsify.errors import ConfigError, ModelError
from fedsparsify.scores import erk, keep_count, lamp, magnitude, random_order, uniform, with_least

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


def test_parts_keep_their_least_number():
    values = [9, 8, 7, 6, 1, 2, 3, 4]
    halves = [(slice(0, 4), 1), (slice(4, 8), 3)]
    assert np.flatnonzero(keep_count(values, 4, least=halves)).tolist() == [0, 5, 6, 7]
    assert np.flatnonzero(keep_count(values, 7, least=halves)).tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert np.flatnonzero(keep_count(values, 4, least=[(slice(4, 8), 4)])).tolist() == [4, 5, 6, 7]
    among = np.array([True] * 5 + [False] * 3)  # of the second part only one entry is left
    assert np.flatnonzero(keep_count(values, 3, among, halves)).tolist() == [0, 1, 4]
    with pytest.raises(ModelError, match=r"must keep 4 entries in all\. Received: a count of 3"):
        keep_count(values, 3, least=halves)


def test_a_part_that_falls_short_only_once_another_has_taken_its_own():
    values = [9, 8, 7, 5, 6, 1, 2]
    thirds = [(slice(0, 3), 1), (slice(3, 5), 2), (slice(5, 7), 1)]
    assert np.flatnonzero(keep_count(values, 5, least=thirds)).tolist() == [0, 1, 3, 4, 6]
    assert np.flatnonzero(keep_count(values, 4, least=thirds)).tolist() == [0, 3, 4, 6]


@settings(max_examples=50)
@given(scores, st.floats(0, 0.999), st.floats(0, 0.9), st.data())
def test_least_numbers_are_met_exactly_and_at_the_cost_of_the_lowest(values, sparsity, before, data):
    """Against a slow definition: the least number of each part, then the highest of the rest."""
    torch = pytest.importorskip("torch")
    among = keep_top(values[::-1].copy(), before)
    cuts = sorted(data.draw(st.sets(st.integers(0, values.size), max_size=4)) | {0, values.size})
    least = [(slice(a, b), data.draw(st.integers(0, b - a))) for a, b in pairwise(cuts)]
    must = np.zeros(values.size, np.bool_)
    for place, few in least:
        must[place] = keep_count(values[place], few, among[place])
    count = max(values.size - int(sparsity * values.size), int(must.sum()))
    expected = must | keep_count(values, count - int(must.sum()), among & ~must)
    found = keep_count(values, count, among, least)
    assert found.tolist() == expected.tolist()
    assert found.sum() == min(count, among.sum())
    assert keep_count(torch.from_numpy(values), count, torch.from_numpy(among), least).tolist() == found.tolist()


def test_a_mask_is_filled_up_to_the_least_number():
    mask, among = np.array([True, False, False, False]), np.array([True, True, True, False])
    least = [(slice(0, 1), 1), (slice(1, 4), 1)]
    assert with_least(mask, np.array([1.0, 2, 3, 4]), among, least).tolist() == [True, False, True, False]
    assert mask.tolist() == [True, False, False, False]


def test_lamp_literally():
    """w² over the sum of w² that are not smaller, in each tensor; a scale of a tensor changes nothing."""
    model = kernel_model([[1, -2], [3, 4]], [1e-12, 0, -2e-12], [0, 0])
    expected = [1 / 30, 4 / 29, 9 / 25, 1, 0.2, 0, 1, 0, 0]
    assert lamp(model).tolist() == pytest.approx(expected)
    assert lamp(kernel_model([[2, 2]])).tolist() == pytest.approx([1, 0.5])  # of equals the lower index is kept


def test_uniform_and_erk_literally():
    model = kernel_model(np.arange(1, 9).reshape(2, 4), [[30, 20], [0, 10]])
    assert uniform(model).tolist() == pytest.approx([1, 8 / 7, 8 / 6, 8 / 5, 2, 8 / 3, 4, 8, 4, 2, 1, 4 / 3])
    assert keep_top(uniform(model), 0.5).tolist() == [False] * 4 + [True] * 6 + [False] * 2
    # ERK: (2 + 4) / 8 and (2 + 2) / 4, so that half of the entries is 3.6 of the first and 2.4 of the second
    assert erk(model).tolist() == pytest.approx([6 / 8, 6 / 7, 1, 6 / 5, 6 / 4, 2, 3, 6, 4, 2, 1, 4 / 3])
    assert keep_top(erk(model), 0.5).tolist() == [False] * 4 + [True] * 6 + [False] * 2


@settings(max_examples=40)
@given(st.lists(hnp.arrays(np.float32, st.integers(0, 9), elements=st.integers(-4, 4).map(float)), min_size=1))
def test_scores_by_tensor_are_the_same_in_torch_and_follow_magnitude(tensors):
    torch = pytest.importorskip("torch")
    model = kernel_model(*tensors)
    if not model.layout.trainable:
        return
    for score in (lamp, uniform, erk):
        found = score(model)
        assert found.dtype == np.float32
        assert score(model.beside(torch.zeros(1))).tolist() == found.tolist()
        for spec in model.layout.tensors:
            size, here = np.abs(model.weights[model.layout.slices[spec.name]]), found[model.layout.slices[spec.name]]
            assert (here[np.argsort(-size, kind="stable")][1:] <= here[np.argsort(-size, kind="stable")][:-1]).all()


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
