"""Keys that change while a federation of real processes plays its rounds."""

from __future__ import annotations

import json
import shutil
import sys
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from real import Processes

from fedsparsify import RunConfig
from fedsparsify.cli import cli
from fedsparsify.federation.flower.keys import certificates_in
from fedsparsify.federation.flower.processes import free_port
from fedsparsify.federation.ledger import Entry, read_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.flower,
    pytest.mark.skipif(sys.platform != "linux", reason="starts and ends processes as Linux does"),
]


def keys(*words: object) -> None:
    CliRunner().invoke(cli, ["keys", *map(str, words)], catch_exceptions=False)


def last(federation: Processes) -> Entry | None:
    path = federation.out / "history.jsonl"
    return (read_history(path) or [None])[-1] if path.exists() else None


def played_by(federation: Processes, clients: set[int]) -> bool:
    """Whether the last round was made by these clients alone."""
    entry = last(federation)
    here = {f"client {client}" for client in range(3)} - {*entry.refused} if entry else set()
    return here == {f"client {client}" for client in clients} and entry.clients == len(clients)


def asked(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        return answer.read().decode()


def test_keys_are_revoked_added_and_renewed_in_a_running_federation(tmp_path):
    """And the logs, the health, the metrics and the page of the processes on the way."""
    config = RunConfig(clients=3, rounds=500, epochs=1, min_clients=1)
    with Processes(tmp_path, config) as federation:
        folder = tmp_path / "keys"
        backup = shutil.copy(folder / "node-1.pub", tmp_path / "backup.pub")
        port, own = free_port(), free_port()
        federation.serve("--deadline", 30, "--metrics", port, "--page", port, "--log-format", "json")
        for client in range(3):
            more = ["--metrics", own, "--log-format", "json"] if client == 0 else ["--tries", int(client == 1)]
            federation.join(client, *more)
        federation.until(lambda: played_by(federation, {0, 1, 2}), 120)
        federation.until(lambda: "fedsparsify_accuracy " in asked(port, "metrics"), 10)
        assert json.loads(asked(port, "health"))["processes"] == {"superlink": True, "proxy": True}
        assert json.loads(asked(own, "health"))["processes"] == {"supernode": True}
        assert json.loads(asked(port, "data.json"))["live"]["rounds"] == 500
        for name in ("serve", "join-0"):
            lines = [json.loads(line) for line in federation.words(name).splitlines()]
            assert len(lines) > 3 and all({"time", "level", "message"} <= {*line} for line in lines)
        keys("revoke", folder, "node-1")
        federation.until(lambda: "node-1 was revoked: it is unregistered" in federation.words("serve"), 20)
        revoked_at = last(federation).round
        federation.started[2].wait(60)  # client 1 ends
        federation.until(lambda: played_by(federation, {0, 2}) and last(federation).round > revoked_at, 60)
        shutil.copy(backup, folder / "node-1.pub")  # as from a backup
        again = federation.join(1, "--tries", 1)
        assert again.wait(60) != 0
        (folder / "node-1.pub").unlink()
        keys("add", folder, "--name", "mercy")
        keys("renew", folder, "--days", 7)
        federation.until(lambda: "mercy may join" in federation.words("serve"), 20)
        proxy_log = federation.out / "flower/proxy.log"
        federation.until(lambda: "nodes are shown the new server.crt" in proxy_log.read_text(), 20)
        federation.join(1, key="keys/mercy")
        federation.until(lambda: played_by(federation, {0, 1, 2}), 90)
        assert "4 keys" not in proxy_log.read_text() and "3 keys may join" in proxy_log.read_text()
        assert len(certificates_in(folder / "ca.crt")) == 1
