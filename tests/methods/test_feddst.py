"""FedDST by hand: budgets, what a client moves, what the server keeps."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import kernel_model
from hypothesis import given
from hypothesis import strategies as st

from fedsparsify import RunConfig
from fedsparsify.errors import ConfigError
from fedsparsify.methods import FedDST, Fit, Score, Update
from fedsparsify.methods.feddst import budgets
from fedsparsify.model import Layout, TensorSpec

RNG = np.random.default_rng(0)


def layout(*shapes) -> Layout:
    return Layout(tuple(TensorSpec(f"t{number}", shape) for number, shape in enumerate(shapes)))


def test_erk_budgets():
    shapes = layout((4, 4), (4, 2), (2,))
    # 26 entries. At 0.5, 13 stay, 2 of them biases; 11 are shared 8 : 6 (the sums of dimensions): 6.29 and 4.71.
    assert budgets(shapes, 0.5) == [6, 5, 2]
    # At 0.2, 21 stay; 19 shared 8 : 6 would give the second 8.14 of its 8: it stays whole, and 11 are left.
    assert budgets(shapes, 0.2) == [11, 8, 2]
    assert budgets(shapes, 0.0) == [16, 8, 2]
    assert budgets(layout((8, 3, 3, 3), (8, 72)), 0.5) == [69, 327]  # 17 : 80, of 396


def test_the_papers_network():
    fc = layout((128, 784), (128,), (128, 128), (128,), (10, 128), (10,))
    counts = budgets(fc, 0.8)
    assert sum(counts) == 118_282 - int(0.8 * 118_282)
    assert counts[1::2] == [128, 128, 10]
    assert counts[4] == 1280  # the last layer would get more than it has


@given(
    st.lists(
        st.one_of(st.tuples(st.integers(1, 9)), st.tuples(st.integers(1, 9), st.integers(1, 9))), min_size=1, max_size=6
    ),
    st.floats(0, 0.99),
)
def test_budgets_fit_and_sum_up(shapes, sparsity):
    tensors = layout(*shapes)
    left = tensors.trainable - int(sparsity * tensors.trainable)
    fixed = sum(spec.size for spec in tensors.tensors if len(spec.shape) == 1)
    if left < fixed:
        with pytest.raises(ConfigError):
            budgets(tensors, sparsity)
        return
    counts = budgets(tensors, sparsity)
    assert sum(counts) == left
    assert all(0 <= count <= spec.size for count, spec in zip(counts, tensors.tensors, strict=True))


def model(weights, mask=None):
    return kernel_model(np.reshape(weights, (2, 4)), masks=None if mask is None else [mask])


METHOD = FedDST(rounds=4, sparsity=0.5, alpha=0.5, readjust=1, end=2)  # round 1 moves α/2 · (1 + cos π/2) = ¼ of 4


def test_it_starts_at_its_budgets_by_magnitude():
    start = METHOD.begin(model([1, -8, 2, -7, 3, 6, -4, 5]))
    assert start.weights.tolist() == [0, -8, 0, -7, 0, 6, 0, 5]


def test_a_client_drops_the_smallest_and_regrows_the_steepest():
    start = model([1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0])
    client = METHOD.client(1, start)
    assert next(client) == Fit(start)
    trained = model([4, -3, 2, 1, 0, 0, 0, 0], start.mask)
    question = client.send(Update(trained, 5, loss=1.0))
    assert isinstance(question, Score) and question.by == "gradient"
    assert question.model.weights.tolist() == [4, -3, 2, 0, 0, 0, 0, 0]
    again = client.send(Update(question.model, 5, scores=np.float32([9, 9, 9, 0.1, 0.5, -7, 0.2, 0])))
    assert again.epochs == 1
    assert again.model.mask.tolist() == [True, True, True, False, False, True, False, False]
    assert again.model.weights.tolist() == [4, -3, 2, 0, 0, 0, 0, 0]
    with pytest.raises(StopIteration) as done:
        client.send(Update(again.model, 5, loss=0.5))
    assert done.value.value.model is again.model


def test_the_server_averages_holders_and_prunes_to_the_budget():
    one = Update(model([4, 3, 2, 0, 0, 1, 0, 0], [1, 1, 1, 0, 0, 1, 0, 0]), 1)
    two = Update(model([2, 1, 2, 5, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]), 3)
    merged = METHOD.merge(1, one.model, iter([one, two]), RNG)
    assert merged.weights.tolist() == [2.5, 1.5, 2, 5, 0, 0, 0, 0]  # the fourth is 5, not 3.75; the sixth's 1 is pruned
    assert merged.pruned == 4


def test_when_and_how_much_it_moves():
    method = FedDST(rounds=200)
    moved = {t: method.moved(t) for t in range(1, 201) if method.moved(t)}
    assert list(moved) == [15, 30, 45, 60, 75, 90]
    assert moved[15] == pytest.approx(0.005 * (1 + np.cos(0.15 * np.pi)))
    assert list(moved.values()) == sorted(moved.values(), reverse=True)
    client = method.client(14, model([1] * 8))
    next(client)
    with pytest.raises(StopIteration):
        client.send(Update(model([1] * 8), 1))


def test_mistakes():
    for settings in ({"alpha": 1.0}, {"readjust": 0}, {"end": -1}, {"settle": 0}, {"sparsity": 80}, {"per_class": 0}):
        with pytest.raises(ConfigError, match="Received"):
            RunConfig(method={"name": "feddst", **settings})
    with pytest.raises(ConfigError, match="fewer than the 9 of biases, norms, which"):
        budgets(layout((2, 2), (9,)), 0.9)
