"""An ordinary Flower app that was not written for us, over real processes with TLS and keys.

Its network has batch norm between its layers, its loop goes by the order of arrays, and it measures its messages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from fedsparsify.federation.flower.commands import Keys, Link, environment_variables, supernode
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.processes import Server, free_port, running

PROJECT = """
[project]
name = "ordinary"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "someone"
[tool.flwr.app.components]
serverapp = "ordinary.server:app"
clientapp = "ordinary.client:app"
[tool.flwr.app.config]
"""
NET = """
import torch
def net():
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 30), torch.nn.BatchNorm1d(30), torch.nn.ReLU(), torch.nn.Linear(30, 3)
    return torch.nn.Sequential(*layers)
def samples(seed):
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 4, generator=made)
    return x, x[:, :3].argmax(1)
"""
CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from fedsparsify.federation.flower import sparse_mod
from .net import net, samples
app = ClientApp(mods=[message_size_mod, sparse_mod])
def loaded(message):
    module = net()
    arrays = message.content["arrays"].to_numpy_ndarrays()
    state = {name: torch.from_numpy(array.copy()) for name, array in zip(module.state_dict(), arrays, strict=True)}
    module.load_state_dict(state)
    return module
@app.train()
def train(message, context):
    module = loaded(message).train()
    x, y = samples(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"loss": float(loss), "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
@app.evaluate()
def evaluate(message, context):
    if context.node_config["partition-id"] == 1 and message.content["config"]["server-round"] == 2:
        raise ValueError("no scans today")
    x, y = samples(10 + context.node_config["partition-id"])
    accuracy = float((loaded(message).eval()(x).argmax(1) == y).float().mean())
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""
SERVER = """
import json
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from fedsparsify.federation.flower import SparseStrategy
from .net import net
app = ServerApp()
@app.main()
def main(grid, context):
    start = ArrayRecord(net().state_dict())
    strategy = SparseStrategy("fedsparsify-global", sparsity=0.6)
    result = strategy.start(grid, start, num_rounds=3)
    found = {
        "same order": list(result.arrays) == list(start),
        "sparsity": strategy.model.sparsity,
        "rounds": len(result.train_metrics_clientapp),
        "evaluated": {t: dict(metrics) for t, metrics in result.evaluate_metrics_clientapp.items()},
    }
    print("FOUND", json.dumps(found), flush=True)
"""


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`verify=<str>` is deprecated:DeprecationWarning")  # Flower's own client
@pytest.mark.skipif(sys.platform != "linux", reason="starts and ends processes as Linux does")
def test_an_ordinary_app_becomes_sparse(tmp_path):
    app = tmp_path / "app"
    (app / "ordinary").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("net", NET), ("client", CLIENT), ("server", SERVER)):
        (app / f"ordinary/{name}.py").write_text(text)
    make_keys(tmp_path / "keys", ["127.0.0.1"], 2)
    link = Link("127.0.0.1", free_port(), free_port(), Keys(tmp_path / "keys"), tmp_path / "flower")
    with ExitStack() as stack:
        stack.enter_context(Server(link, print).open())
        for number in range(2):
            settings = {"partition-id": number, "num-partitions": 2}
            keys = tmp_path / "keys/ca.crt", tmp_path / f"keys/node-{number}"
            command = supernode(link.public_address, *keys, free_port(), settings)
            home = environment_variables(tmp_path / f"home-{number}")
            stack.enter_context(running(command, home, tmp_path / f"node-{number}.log"))
        done = subprocess.run(
            link.run(app), env=environment_variables(link.home), capture_output=True, text=True, timeout=400
        )
    words = done.stdout + done.stderr
    logs = "".join((tmp_path / f"node-{number}.log").read_text() for number in range(2))
    assert "FOUND" in words, words[-3000:] + logs[-3000:]
    found = json.loads(words.partition("FOUND ")[2].splitlines()[0])
    print(found)
    assert found["same order"] and found["rounds"] == 3 and found["sparsity"] == pytest.approx(0.6, abs=0.01)
    assert set(found["evaluated"]) == {"1", "2", "3"} and found["evaluated"]["3"]["accuracy-worst"] > 0.6
    assert "no scans today" in words and "Message content is None" not in words + logs
    assert "Incoming message size" in logs
