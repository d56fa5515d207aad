"""Differential privacy over Flower: the same mechanism in our app and in `SparseStrategy`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake import play
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from test_strategy import Grid

from fedsparsify import RunConfig, load_dataset
from fedsparsify.aggregation import accountant
from fedsparsify.errors import ConfigError
from fedsparsify.federation.flower import SparseStrategy, sparse_mod
from fedsparsify.federation.flower.messages import MODEL
from fedsparsify.federation.simulated import Simulated
from fedsparsify.wire.codec import decode

pytestmark = pytest.mark.filterwarnings("ignore:the noise of a round is")


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(accountant.Accountant, "_computed", lambda self, releases: 0.1 * releases)


def test_a_served_run_sends_the_noised_model_and_publishes_nothing_of_one_client(tmp_path):
    config = RunConfig(method="fedavg", rounds=2, epochs=1, clients=3, lr=1e-12, dp_noise=1.0, dp_clip=6.0, delta=1e-3)
    result, grid = play(tmp_path, config)
    start = Simulated(config, load_dataset("digits")).initial()
    second = decode(next(q.model for q in grid.questions if q.round == 2), start.mask, start.layout)
    assert np.std(second.weights - start.weights) == pytest.approx(6 / 3, rel=0.05)  # z · C / (q · N)
    assert [entry.epsilon for entry in result.history] == [0.1, 0.2]
    for line in map(json.loads, (tmp_path / "run" / "history.jsonl").read_text().splitlines()):
        assert not {"train_loss", "updates", "bounded", "client_bytes", "phases"} & line.keys()
        assert (line["clients"], line["refused"], line["upload_bytes"]) == (3, {}, None)


def still() -> ClientApp:
    """Nodes that do not move, and tell their loss."""
    app = ClientApp(mods=[sparse_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 5, "train_loss": 1.0})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    return app


def test_a_strategy_sends_the_noised_model_and_only_its_own_metrics(tmp_path):
    settings = {"dp_noise": 1.0, "dp_clip": 8.0, "clients": 4, "fraction_evaluate": 0.0, "fraction_train": 0.5}
    rounds = []
    grid = Grid(still(), tmp_path, lambda node, round, reply: rounds.append(round) or reply, nodes=4)
    strategy = SparseStrategy("fedavg", rounds=8, **settings)
    result = strategy.start(grid, ArrayRecord({"w": Array(np.zeros((50, 60), "f"))}), num_rounds=8)
    assert result.train_metrics_clientapp[8] == {"sparsity": 0.0, "epsilon": 0.8}
    assert {rounds.count(t) for t in range(1, 9)} != {2}  # Poisson: two of four on average
    last = decode(grid.messages[-1].content[MODEL]["model"], strategy.model.mask, strategy.model.layout)
    assert np.std(last.weights) == pytest.approx(8 / 2 * (rounds[-1] - 1) ** 0.5, rel=0.08)


def test_a_strategy_refuses_what_would_void_it():
    private = {"rounds": 2, "dp_noise": 1.0, "fraction_evaluate": 0.0, "clients": 4}
    with pytest.raises(ConfigError, match="needs `clients`"):
        SparseStrategy("fedavg", **private | {"clients": None})
    with pytest.raises(ConfigError, match=r"fraction_evaluate=0\.0"):
        SparseStrategy("fedavg", **private | {"fraction_evaluate": 0.5})
    with pytest.raises(ConfigError, match="clients send masks"):
        SparseStrategy("fedsparsify-local", **private)
    with pytest.raises(ConfigError, match="train_metrics_aggr_fn"):
        SparseStrategy("fedavg", **private, train_metrics_aggr_fn=lambda records, key: MetricRecord())
