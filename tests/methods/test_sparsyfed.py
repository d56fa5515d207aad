"""Top-K and SparsyFed by hand: what a client is asked for and sends, and what the server makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import kernel_model

from fedsparsify import RunConfig, run
from fedsparsify.errors import ConfigError
from fedsparsify.methods import SparsyFed, TopK, Update, check_fits
from fedsparsify.methods.sparsyfed import raised, truncated_normal

RNG = np.random.default_rng(0)


def model(weights, bias=(0, 0), mask=None):
    masks = None if mask is None else [mask, [1, 1]]
    return kernel_model(np.reshape(weights, (2, 3)), np.array(bias), masks=masks)


def sent(method, start, trained):
    client = method.client(1, start)
    request = next(client)
    with pytest.raises(StopIteration) as done:
        client.send(Update(trained, 4, loss=1.0))
    return request, done.value.value


def test_topk_trains_every_entry_and_sends_the_largest():
    start = model([1, 0, 2, 0, 3, 0], mask=[1, 0, 1, 0, 1, 0])
    request, update = sent(TopK(sparsity=0.5), start, model([1, -9, 2, 0.5, 3, -8], bias=[0.01, 0.02]))
    assert request.model.mask.all() and request.model.weights.tolist() == start.weights.tolist()
    assert (request.power, request.prune_inputs) == (1, False)
    # Of eight entries four stay; two of them are the biases, which are never pruned.
    assert update.model.weights == pytest.approx([0, -9, 0, 0, 0, -8, 0.01, 0.02])


def test_topk_averages_what_anyone_sent():
    one = Update(model([4, 0, 0, 0, 0, 0], mask=[1, 0, 0, 0, 0, 0]), 1)
    two = Update(model([2, 0, 6, 0, 0, 0], mask=[1, 0, 1, 0, 0, 0]), 3)
    merged = TopK(sparsity=0.5).merge(1, one.model, iter([one, two]), RNG)
    assert merged.weights.tolist() == [2.5, 0, 4.5, 0, 0, 0, 0, 0]
    assert merged.mask.tolist() == [True, False, True, False, False, False, True, True]


def test_sparsyfed_asks_for_its_step_under_the_mask():
    start = model([1, 0, 2, 0, 3, 0], mask=[1, 0, 1, 0, 1, 0])
    request, update = sent(SparsyFed(sparsity=0.5, power=1.5), start, model([1, 0, -2, 0, 3, 0], mask=start.mask[:6]))
    assert request.model is start
    assert (request.power, request.prune_inputs, request.by_autograd) == (1.5, True, True)
    assert update.model.weights.tolist() == [0, 0, -2, 0, 3, 0, 0, 0]
    assert sent(SparsyFed(power=1, prune_inputs=False, sparsity=0.5), start, start)[0].by_autograd is False


def test_sparsyfed_averages_before_the_power():
    one = Update(model([4, 0, -9, 0, 0, 0], bias=[1, 0]), 1)
    two = Update(model([16, 0, 1, 0, 0, 0], bias=[2, 0]), 1)
    merged = SparsyFed(power=2).merge(1, one.model, iter([one, two]), RNG)
    # Roots of the weights: (2 + 4)/2 = 3 and (−3 + 1)/2 = −1. Biases have no power.
    assert merged.weights == pytest.approx([9, 0, -1, 0, 0, 0, 1.5, 0])


def test_powers_keep_signs_and_come_back():
    start = model([1, -2, 0, 0.5, -0.25, 3], bias=[-4, 4])
    assert raised(start, 2).weights.tolist() == [1, -4, 0, 0.25, -0.0625, 9, -4, 4]
    assert raised(raised(start, 1.25), 1 / 1.25).weights == pytest.approx(start.weights, rel=1e-6)


def test_it_starts_with_the_authors_distribution():
    drawn = np.random.default_rng(1).uniform(-5, 5, 20_000).astype(np.float32)
    made = truncated_normal(drawn, 0.1)
    assert made.std() == pytest.approx(0.1, rel=0.01)
    assert 0.22 < np.abs(made).max() <= 0.2 / 0.8796
    assert np.array_equal(np.argsort(made, kind="stable"), np.argsort(drawn, kind="stable"))
    begun = SparsyFed().begin(model([6, 5, 4, 3, 2, 1], bias=[7, 8]))
    assert begun.weights[6:].tolist() == [7, 8]
    assert begun.weights[:6].std() == pytest.approx(3**-0.5, rel=0.2)


def test_mistakes():
    for name, settings in (("sparsyfed", {"power": 0.5}), ("topk", {"sparsity": 95}), ("sparsyfed", {"power": np.nan})):
        with pytest.raises(ConfigError, match="Received"):
            RunConfig(method={"name": name, **settings})
    with pytest.raises(ConfigError, match="leaves 1 of 8 entries, fewer than the 2 of biases"):
        check_fits(TopK(sparsity=0.9), model([1] * 6))


def test_it_learns_and_its_uploads_have_the_target():
    config = RunConfig(method={"name": "sparsyfed", "sparsity": 0.8}, rounds=5, epochs=4, clients=3, lr=0.5)
    result = run(config)
    assert result.history[-1].accuracy > 0.7
    trainable = result.model.layout.trainable
    assert all(entry.upload_params == 3 * (trainable - int(0.8 * trainable)) for entry in result.history)
    assert all(entry.sparsity <= 0.8 for entry in result.history)
