"""Held-out samples of a client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify.data.holdout import hold_out


def test_classes_give_their_share():
    labels = np.repeat([0, 1, 2], [40, 40, 20])
    train, held = hold_out(labels, np.arange(100), 0.25, seed=3, client=0)
    assert np.bincount(labels[held]).tolist() == [10, 10, 5]
    assert np.bincount(labels[train]).tolist() == [30, 30, 15]


def test_seed_and_client_decide():
    labels, part = np.arange(50) % 5, np.arange(50)
    held = [hold_out(labels, part, 0.2, seed, client)[1].tolist() for seed, client in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert held[0] == held[1] and held[0] != held[2] and held[0] != held[3]


def test_one_sample_is_trained_on():
    train, held = hold_out([7, 7, 7], np.array([2]), 0.5, seed=1, client=0)
    assert train.tolist() == [2] and held.tolist() == []


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 20), np.eye(20)], ids=["regression", "multi-label"])
def test_other_targets_are_drawn_at_random(labels):
    train, held = hold_out(labels, np.arange(20), 0.25, seed=1, client=0)
    assert held.size == 5 and sorted([*train, *held]) == list(range(20))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_both_parts_are_the_whole_and_never_empty(labels, fraction, seed):
    part = np.arange(len(labels))[::-1]
    train, held = hold_out(labels, part, fraction, seed, 1)
    assert train.size and held.size and sorted([*train, *held]) == sorted(part)
    assert held.size == min(max(1, round(fraction * len(labels))), len(labels) - 1)
    counts = np.bincount(np.asarray(labels), minlength=5)
    mine = np.bincount(np.asarray(labels)[held], minlength=5)
    assert (np.abs(mine - counts * held.size / len(labels)) < 2).all()
