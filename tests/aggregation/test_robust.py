from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedsparsify import RunConfig, Update
from fedsparsify.aggregation import Aggregator, MergeSettings
from fedsparsify.aggregation.aggregator import merged_update
from fedsparsify.aggregation.robust import geometric_shares, krum_order, merge_rows, squared_distances
from fedsparsify.errors import ConfigError
from fedsparsify.methods import FedAvg, FedSparsifyGlobal, ServerContext, Snip, merged

ROWS = np.array([[1, 10], [2, 20], [3, 30], [4, -1e6], [1e9, 25]], np.float32)
ROBUST = ["median", "trimmed", "geometric-median", "multi-krum"]


def test_literal_values():
    assert merge_rows(ROWS, "mean", 0).tolist() == pytest.approx([2e8 + 2, -199_983])
    assert merge_rows(ROWS, "median", 0).tolist() == [3, 20]
    assert merge_rows(ROWS, "trimmed", 0.2).tolist() == [3, pytest.approx(55 / 3)]  # one of five from each side
    assert merge_rows(ROWS, "trimmed", 0.4).tolist() == [3, 20]
    assert merge_rows(ROWS[:3], "multi-krum", 0.3).tolist() == [2, 20]  # too few to leave one out
    line = np.array([[0], [1], [2], [3], [1e6]], np.float32)
    assert merge_rows(line, "multi-krum", 0.2).tolist() == [1.5]
    assert merge_rows(line, "geometric-median", 0).tolist() == [pytest.approx(2, abs=1e-3)]  # the median of a line


def test_the_geometric_median_of_a_triangle_is_its_fermat_point():
    triangle = np.array([[0, 0], [4, 0], [2, 3]], np.float32)
    x, y = merge_rows(triangle, "geometric-median", 0)
    assert (x, y) == (pytest.approx(2, abs=1e-6), pytest.approx(2 / 3**0.5, abs=1e-6))  # angles of 120°


def test_one_row_is_its_own_merge():
    for rule in ["mean", *ROBUST]:
        assert merge_rows(ROWS[:1], rule, 0.3).tolist() == [1, 10]
        assert merge_rows(np.stack([ROWS[1]] * 4), rule, 0.3).tolist() == pytest.approx([2, 20])


def test_distances_keep_what_float32_loses():
    rng = np.random.default_rng(0)
    rows = (1e-5 * rng.standard_normal((5, 200_000))).astype(np.float32)
    exact = [[float(((a.astype(np.float64) - b) ** 2).sum()) for b in rows.astype(np.float64)] for a in rows]
    assert_allclose(squared_distances(rows), exact, rtol=1e-9)


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("attack", [1e6, -20.0, 0.0, "random", "same"])
def test_three_of_ten_hostile_rows_do_not_carry_the_merge(rule, attack):
    rng = np.random.default_rng(1)
    truth = rng.standard_normal(2000)
    rows = (truth + 0.5 * rng.standard_normal((10, 2000))).astype(np.float32)
    honest = rows[3:].mean(axis=0)
    if attack == "random":
        rows[:3] = rng.standard_normal((3, 2000))
    elif attack == "same":
        rows[:3] = -truth
    else:
        rows[:3] *= attack
    error = np.linalg.norm(merge_rows(rows, rule, 0.3) - honest) / np.linalg.norm(honest)
    assert error < 0.5  # the mean's is above 2.5 × 10⁵, 6, 0.3, …


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0, 0.49), st.integers(0, 2**31))
def test_any_number_of_clients_and_any_share(count, hostile, seed):
    rows = np.random.default_rng(seed).standard_normal((count, 7)).astype(np.float32)
    for rule in ROBUST:
        made = merge_rows(rows, rule, hostile)
        assert (made <= rows.max(axis=0) + 1e-6).all() and (made >= rows.min(axis=0) - 1e-6).all()
        shuffled = merge_rows(np.random.default_rng(0).permutation(rows), rule, hostile)
        assert_allclose(made, shuffled, atol=1e-5)
    distances = squared_distances(rows)
    assert geometric_shares(distances).sum() == pytest.approx(1)
    assert len(krum_order(distances, hostile)) >= (count + 1) // 2


def updates(*weights, model=None):
    return [
        Update(small_model(w, mask=None if model is None else model.mask), 10, client=i) for i, w in enumerate(weights)
    ]


def test_the_methods_own_merge_takes_the_merged_update_and_purges():
    model = small_model([0, 0, 0, 1])
    found = updates([1, 2, 3, 1], [2, 3, 4, 1], [9, -1e6, 5, 1])
    step = Aggregator(MergeSettings(merge="median")).begin(1, model)
    method, rng = FedSparsifyGlobal(rounds=1, sparsity=0.5), np.random.default_rng(0)
    after, _ = merged(method, 1, model, step.combined(found), rng, ServerContext({}, 3))
    assert after.weights.tolist() == [2, 0, 4, 0]


def test_samples_have_no_weight_in_a_robust_rule():
    model = small_model([0.0])
    found = [
        Update(small_model([w]), samples, client=i) for i, (w, samples) in enumerate([(1, 1), (2, 1), (9, 10**12)])
    ]
    step = Aggregator(MergeSettings(merge="median")).begin(1, model)
    after, _ = merged(FedAvg(rounds=1), 1, model, step.combined(found), np.random.default_rng(0), ServerContext({}, 3))
    assert after.weights.tolist() == [2]


def test_pruned_entries_stay_pruned_and_statistics_are_merged():
    model = small_model([1, 0, 2], mask=[True, False, True], statistics=[4])
    found = [Update(small_model([w, 0, w], [True, False, True], [s]), 1) for w, s in [(1, 4), (3, 5), (8, 9)]]
    made = merged_update(found, model, "median", 0.3).model
    assert made.weights.tolist() == [3, 0, 3, 5]
    assert made.mask.tolist() == [True, False, True]


def test_scores_of_round_0_are_merged_by_the_same_rule():
    model = small_model([1, 2, 3])
    scores = [np.array(each, np.float32) for each in ([1, 2, 3], [2, 3, 4], [1e9, -1e9, 0])]
    found = [Update(model, 5, client=i).only_scores(each) for i, each in enumerate(scores)]
    made = list(Aggregator(MergeSettings(merge="median")).begin(0, model).combined(found))
    assert [one.scores.tolist() for one in made] == [[2, 2, 3]] * 3
    after, _ = merged(Snip(rounds=1, sparsity=0.5), 0, model, made, np.random.default_rng(0), ServerContext({}, 3))
    assert after.nonzero == 2


def test_methods_that_count_clients_see_as_many_and_merged_arrays_beside():
    model = small_model([0.0])
    found = [update.send(control=update.model.weights) for update in updates([1.0], [2.0], [90.0])]
    made = list(Aggregator(MergeSettings(merge="median")).begin(1, model).combined(found))
    assert [(one.client, one.sent["control"].tolist()) for one in made] == [(0, [2]), (1, [2]), (2, [2])]
    method = FedAvg(rounds=1, correction="scaffold")
    after, state = merged(method, 1, model, made, np.random.default_rng(0), ServerContext({}, 6))
    assert (after.weights.tolist(), state["control"].tolist()) == ([2], [1])


def test_torch_tensors_are_merged_as_arrays_are():
    torch = pytest.importorskip("torch")
    model = small_model([0, 1])
    found = updates([1, 2], [2, 3], [7, -9])
    there = [Update(u.model.beside(torch.zeros(1)), u.samples, client=u.client) for u in found]
    here = merged_update(found, model, "median", 0.3).model
    made = merged_update(there, model.beside(torch.zeros(1)), "median", 0.3).model
    assert made.weights.tolist() == here.weights.tolist() == [2, 2]
    assert isinstance(made.weights, torch.Tensor)
    one = Aggregator(MergeSettings()).begin(1, model.beside(torch.zeros(1)))
    list(one.bounded(there))
    two = Aggregator(MergeSettings()).begin(1, model)
    list(two.bounded(found))
    assert one.columns() == two.columns()


def test_settings_are_checked():
    assert RunConfig(merge="trimmed", hostile=0.2).merge == "trimmed"
    for wrong in ({"hostile": 0.5}, {"max_samples": -1}, {"norm_bound": 0.5}, {"merge": "average"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            RunConfig(**wrong)
    for method in ("fedsparsify-local", "feddst", "prunefl"):
        with pytest.raises(ConfigError, match=rf"merge 'median' needs a method .*{method}"):
            RunConfig(method=method, merge="median")
    assert RunConfig(method=FedAvg(), merge="median").merge == "median"
