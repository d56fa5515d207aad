"""`SparseStrategy` with clients that lie: bounds and robust rules, as in a run of our own."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from test_strategy import Grid

from fedsparsify.errors import ConfigError
from fedsparsify.federation.flower import SparseStrategy, sparse_mod

START = {"w": np.zeros((4, 5), "f"), "norm.running_var": np.ones(2, "f")}


def app_of(samples=5, factor=1.0, variance=0.5) -> ClientApp:
    """Every node moves all weights by one; the first node is hostile."""
    app = ClientApp(mods=[sparse_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        bad = context.node_config["partition-id"] == 0
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        arrays["w"] = (arrays["w"] + (factor if bad else 1)).astype("f")
        arrays["norm.running_var"] = arrays["norm.running_var"] * 0 + np.float32(variance if bad else 0.5)
        made = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": samples if bad else 5})
        return Message(RecordDict({"arrays": made, "metrics": metrics}), reply_to=message)

    return app


def trained(folder, app, rounds=1, nodes=3, **settings):
    strategy = SparseStrategy("fedavg", rounds=rounds, fraction_evaluate=0.0, **settings)
    start = ArrayRecord({name: Array(value) for name, value in START.items()})
    strategy.start(Grid(app, folder, nodes=nodes), start, num_rounds=rounds)
    return strategy


@pytest.fixture(autouse=True)
def _told(caplog):
    caplog.set_level(logging.INFO, "flwr")


def test_bounds_are_always_on(tmp_path, caplog):
    strategy = trained(tmp_path, app_of(factor=1e6), rounds=2)
    assert strategy.model.weights[:20].tolist() == pytest.approx([4.0] * 20)  # (4 + 1 + 1) / 3 each round
    assert "node 10: its update is 1e+06 times as long as the median" in caplog.text
    assert strategy.updates[2]["client"] == [10, 11, 12]
    assert strategy.updates[1]["norm"] == [4472140.0, 4.47214, 4.47214]


def test_samples_are_capped(tmp_path, caplog):
    strategy = trained(tmp_path, app_of(samples=10**12, factor=-3.0), max_samples=5)
    assert strategy.model.weights[:20].tolist() == pytest.approx([-1 / 3] * 20)
    assert "it claims 1,000,000,000,000 samples; 5 are counted" in caplog.text


def test_negative_variances_are_left_out(tmp_path, caplog):
    strategy = trained(tmp_path, app_of(factor=-3.0, variance=-1.0))
    assert strategy.model.weights.tolist() == pytest.approx([1.0] * 20 + [0.5, 0.5])
    assert "node 10 is left out: its variance 'norm.running_var' is negative" in caplog.text


def test_robust_rules(tmp_path):
    for rule in ("median", "trimmed", "multi-krum"):
        strategy = trained(tmp_path, app_of(samples=10**12, factor=-3.0), nodes=5, merge=rule)
        assert strategy.model.weights[:20].tolist() == pytest.approx([1.0] * 20)
        assert strategy.updates[1]["cosine"][:2] == [-1, 1]


def test_a_method_with_a_merge_of_its_own_is_refused():
    with pytest.raises(ConfigError, match=r"merge 'median' needs a method .*fedsparsify-local"):
        SparseStrategy("fedsparsify-local", rounds=1, merge="median")
