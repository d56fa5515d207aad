"""Somebody else's Flower app: a strategy on the server, a mod at the client, a loop that knows of neither."""

from __future__ import annotations

import difflib
import re
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedsparsify.errors import ConfigError
from fedsparsify.federation.flower import SparseStrategy, sparse_mod
from fedsparsify.federation.flower.messages import MODEL, Answer
from fedsparsify.federation.flower.tensors import layout_of
from fedsparsify.methods import METHODS, FedSparsifyLocal

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/flower-quickstart"
SETTINGS = {"local-epochs": 2, "learning-rate": 0.1}


class Grid:
    """Two nodes in this process."""

    def __init__(self, app: ClientApp, folder: Path, spoil=lambda node, round, reply: reply, nodes: int = 2) -> None:
        self.app, self.folder, self.spoil, self.messages, self.nodes = app, folder, spoil, [], nodes
        self._ids = count(1)
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self):
        return [*range(10, 10 + self.nodes)]

    def send_and_receive(self, messages, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
            self.messages.append(message)
            node = message.metadata.dst_node_id
            settings = {"partition-id": node - 10, "num-partitions": 2, "folder": str(self.folder / str(node))}
            reply = self.app(message, Context(1, node, settings, RecordDict(), SETTINGS))
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(self.spoil(node, message.content["config"]["server-round"], reply))
        return replies


@pytest.fixture
def quickstart(monkeypatch):
    """The sparse example's modules."""
    monkeypatch.syspath_prepend(EXAMPLE / "sparse")
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)
    from quickstart import client_app, server_app

    torch.manual_seed(0)
    return client_app, server_app


def start(strategy, grid, quickstart, rounds=3):
    _, server_app = quickstart
    arrays = ArrayRecord(server_app.Net().state_dict())
    return strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=server_app.evaluate)


def test_the_example_trains_a_sparse_model(tmp_path, quickstart):
    strategy = SparseStrategy("fedsparsify-global", sparsity=0.95, rounds=3, fraction_evaluate=0.0)
    grid = Grid(quickstart[0].app, tmp_path)
    result = start(strategy, grid, quickstart)
    last = result.evaluate_metrics_serverapp[3]
    assert last["accuracy"] > 0.5
    assert last["zeros"] == pytest.approx(0.95, abs=1e-3) == strategy.model.sparsity
    sent = [metrics["download-bytes"] for metrics in result.train_metrics_clientapp.values()]
    assert sent[2] < sent[0] / 5  # masks are deltas, values are those that are left
    assert sum(len(message.content[MODEL]["model"]) for message in grid.messages[4:]) == sent[2]


def test_pruned_weights_are_zero_after_every_step(tmp_path, quickstart, monkeypatch):
    client_app, _ = quickstart
    seen = []
    step = torch.optim.SGD.step

    def watched(self, *arguments, **named):
        done = step(self, *arguments, **named)
        parameters = self.param_groups[0]["params"]
        seen.append(sum(int((p == 0).sum()) for p in parameters) / sum(p.numel() for p in parameters))
        return done

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    strategy = SparseStrategy("fedprox", settings={"mu": 0.1}, fraction_evaluate=0.0)
    start(strategy, Grid(client_app.app, tmp_path), quickstart, rounds=1)
    assert max(seen) < 0.01  # a dense method leaves it alone
    seen.clear()
    strategy = SparseStrategy(sparsity=0.9, rounds=3, fraction_evaluate=0.0)
    start(strategy, Grid(client_app.app, tmp_path), quickstart)
    assert min(seen[-len(seen) // 3 :]) == pytest.approx(strategy.method.schedule(2), abs=1e-3)


def test_a_method_that_prunes_at_the_clients(tmp_path, quickstart):
    method = FedSparsifyLocal(rounds=3, sparsity=0.9)
    strategy = SparseStrategy(method, rounds=3, fraction_evaluate=0.0)
    result = start(strategy, Grid(quickstart[0].app, tmp_path), quickstart)
    assert result.evaluate_metrics_serverapp[3]["zeros"] > 0.8


def test_bad_answers_are_left_out_and_a_lost_folder_is_made_good(tmp_path, quickstart, caplog):
    def spoil(node, round, reply):
        if (node, round) == (10, 2):
            return Message(Error(code=5, reason="gone"), reply_to=message_of(reply))
        if (node, round) == (10, 3):
            content = Answer(3, -1, samples=5, model=b"garbage" * 9).content()
            content["metrics"] = reply.content["metrics"]
            return Message(content, reply_to=message_of(reply))
        if node == 10 and round == 4:
            for file in (tmp_path / "10").glob("*.mask"):
                file.unlink()
        return reply

    def message_of(reply):
        return Message(RecordDict(), 10, "train")

    strategy = SparseStrategy(sparsity=0.9, rounds=6, fraction_evaluate=0.0, min_train_nodes=1)
    grid = Grid(quickstart[0].app, tmp_path, spoil)
    start(strategy, grid, quickstart, rounds=6)
    assert "must begin with" in caplog.text and "sent to nodes that lost their mask: [10]" in caplog.text
    sizes = [len(m.content[MODEL]["model"]) for m in grid.messages if m.metadata.dst_node_id == 10]
    assert len(sizes) == 7 and sizes[5] > sizes[4] and strategy.model.sparsity == pytest.approx(0.9, abs=1e-3)


def test_too_few_answers_leave_the_model_as_it_is(tmp_path, quickstart):
    def spoil(node, round, reply):
        if (node, round) != (10, 2):
            return reply
        return Message(Answer(2, -1, lacks=b"12345678").content(), reply_to=Message(RecordDict(), 10, "train"))

    strategy = SparseStrategy(sparsity=0.9, rounds=2, fraction_evaluate=0.0, min_train_nodes=2)
    result = start(strategy, Grid(quickstart[0].app, tmp_path, spoil), quickstart, rounds=2)
    assert strategy.model.sparsity == 0 and set(result.train_metrics_clientapp) == {1}


def test_evaluation_at_the_clients_gets_the_sparse_model(tmp_path, quickstart):
    client_app, server_app = quickstart
    app = ClientApp(mods=[sparse_mod])
    app.train()(client_app.fit)
    zeros = []

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = server_app.evaluate(0, message.content["arrays"])
        zeros.append(metrics["zeros"])
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, **metrics})}), reply_to=message)

    strategy = SparseStrategy(sparsity=0.9, rounds=2)
    result = start(strategy, Grid(app, tmp_path), quickstart, rounds=2)
    assert zeros[-1] == pytest.approx(0.9, abs=1e-3)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == result.evaluate_metrics_serverapp[2]["accuracy"]


def test_other_strategies_pass_the_mod(tmp_path):
    app = ClientApp(mods=[sparse_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(3, np.float32))}), "config": ConfigRecord()})
    message = Message(content, 5, "train")
    assert app(message, Context(1, 5, {}, RecordDict(), {})).content is content


def test_a_loop_that_answers_too_little_is_told(tmp_path, quickstart):
    for content, reason in (
        (RecordDict(), "one ArrayRecord and one MetricRecord"),
        (RecordDict({"a": ArrayRecord(), "m": MetricRecord()}), "'num-examples'"),
    ):
        app = ClientApp(mods=[sparse_mod])
        app.train()(lambda message, context, content=content: Message(content, reply_to=message))
        with pytest.raises(ConfigError, match=reason):
            start(SparseStrategy(rounds=3, fraction_evaluate=0.0), Grid(app, tmp_path), quickstart)


def test_what_is_trained_and_what_is_not():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    layout, dtypes = layout_of(ArrayRecord(module.state_dict()))
    assert [spec.name for spec in layout.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [spec.name for spec in layout.statistics] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert "int64" in dtypes


def test_methods_that_need_our_own_app_say_so_and_the_page_names_them():
    page = (Path(__file__).parents[3] / "docs" / "federation.md").read_text()
    [said] = re.findall(r"need our own app: (.*?)\.", page, re.DOTALL)
    refused = {*re.findall(r"`([\w-]+)`", said)}
    for method in METHODS:
        if method in refused:
            with pytest.raises(ConfigError, match="fedsparsify serve"):
                SparseStrategy(method, rounds=30)
        else:
            SparseStrategy(method, rounds=30)


def test_the_two_examples_differ_in_less_than_ten_lines():
    changed = []
    for path in sorted((EXAMPLE / "dense").rglob("*.*")):
        if path.suffix in (".py", ".toml"):
            other = EXAMPLE / "sparse" / path.relative_to(EXAMPLE / "dense")
            lines = difflib.unified_diff(path.read_text().splitlines(), other.read_text().splitlines(), n=0)
            changed += [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---") and line[1:]]
    assert 0 < len(changed) < 10
