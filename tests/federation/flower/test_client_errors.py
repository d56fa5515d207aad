"""An error at a client: the server learns its class; what it says stays at the client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake import FakeGrid
from flwr.app import Context, Message, MessageType, RecordDict

from fedsparsify import RunConfig
from fedsparsify.errors import ClientError
from fedsparsify.federation.flower.client import Node
from fedsparsify.federation.flower.client_app import app
from fedsparsify.federation.flower.messages import Hello
from fedsparsify.federation.flower.prepare import make_task
from fedsparsify.federation.flower.server_app import run_over_grid
from fedsparsify.federation.folder import RunFolder

SECRET = "patient-4711"


class LeakyGrid(FakeGrid):
    """Client 1 trains on other samples, and shares its errors or not."""

    more: dict

    def _context(self, node):
        context = super()._context(node)
        context.node_config.update(self.more if node == 101 else {})
        return context


def refusal(tmp_path, **more) -> str:
    config = RunConfig(clients=2, rounds=1, epochs=1)
    settings = make_task(config, RunFolder(tmp_path / "run")).settings()
    settings |= {"out": str(tmp_path / "run"), "deadline": 5.0, "wait": 0.5, "retries": 0}
    grid = LeakyGrid(tmp_path / "nodes", settings, 2)
    grid.more = more
    return run_over_grid(grid, settings).history[0].refused["client 1"]


def write_samples(tmp_path) -> str:
    path = tmp_path / f"{SECRET}.npz"
    np.savez(path, x_train=np.zeros((4, 1, 9, 9), np.float32), y_train=np.zeros(4, np.int64))
    return str(path)


def test_the_server_learns_the_class_alone(tmp_path, caplog):
    said = refusal(tmp_path, data=write_samples(tmp_path))
    assert said == "DataError (the client's log says more)"
    assert SECRET in caplog.text and "(1, 9, 9)" in caplog.text


def test_a_client_may_share_its_errors(tmp_path):
    said = refusal(tmp_path, data=write_samples(tmp_path), **{"share-errors": True})
    assert SECRET in said and "Received: (1, 9, 9)" in said and "client.py, line" in said


def test_what_a_method_says_stays_too(tmp_path, monkeypatch, caplog):
    usual = Node.answer
    monkeypatch.setattr(Node, "answer", lambda self, question: replace(usual(self, question), fault=f"not {SECRET}"))
    with pytest.raises(ClientError, match="its half of the round failed") as raised:
        refusal(tmp_path)
    assert SECRET not in str(raised.value) and SECRET in caplog.text


def test_a_hello_that_fails_names_no_folder(tmp_path):
    (tmp_path / SECRET).write_text("a file, not a folder")
    context = Context(1, 100, {"folder": str(tmp_path / SECRET / "node")}, RecordDict(), {})
    message = Message(Hello().content(), 100, MessageType.QUERY)
    with pytest.raises(ClientError, match=r"^RunError \(the client's log says more\)$") as raised:
        app(message, context)
    assert raised.value.__suppress_context__
