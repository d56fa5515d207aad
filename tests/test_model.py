from __future__ import annotations

import numpy as np
import pytest
from conftest import small_model

from fedsparsify import SparseModel
from fedsparsify.errors import ModelError
from fedsparsify.model import Layout, TensorSpec


def test_views_share_memory_and_follow_the_layout():
    layout = Layout((TensorSpec("a", (2, 2)), TensorSpec("b", ())), (TensorSpec("mean", (3,)),))
    model = SparseModel.dense(layout, np.arange(8, dtype=np.float32))
    assert (layout.trainable, layout.total) == (5, 8)
    assert model.tensors()["a"].tolist() == [[0, 1], [2, 3]]
    assert model.tensors()["b"].tolist() == 4
    assert np.shares_memory(model.tensors()["mean"], model.weights)


def test_counts():
    model = small_model([1, 0, 0], [True, True, False], statistics=[5, 6])
    assert (model.pruned, model.nonzero) == (1, 4)  # a kept weight may be zero, and statistics always travel
    assert model.sparsity == pytest.approx(1 / 3)


def test_under_prunes_and_never_returns_a_weight():
    model = small_model([1, 0, 3], [True, False, True], statistics=[7])
    smaller = model.under(np.array([False, True, True]))
    assert smaller.mask.tolist() == [False, False, True]
    assert smaller.weights.tolist() == [0, 0, 3, 7]
    assert model.weights.tolist() == [1, 0, 3, 7]


def test_refusals():
    layout = Layout((TensorSpec("w", (2,)),))
    keep = np.ones(2, np.bool_)
    with pytest.raises(ModelError, match="outside the mask"):
        small_model([1, 2], [True, False])
    with pytest.raises(ModelError, match="float64"):
        SparseModel(layout, np.zeros(2), keep)
    with pytest.raises(ModelError, match=r"shape \(3,\)"):
        SparseModel(layout, np.zeros(3, np.float32), keep)
    with pytest.raises(ModelError, match="twice: w"):
        Layout((TensorSpec("w", (2,)), TensorSpec("w", (1,))))
