"""The real thing, as an operator runs it: keys that are taken away, nodes that are late, signals. With TLS and keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real import Processes, descendants

from fedsparsify import RunConfig
from fedsparsify.federation.ledger import read_history

pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="starts and ends processes as Linux does"),
]


def rounds_done(federation: Processes) -> int:
    path = federation.out / "history.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_a_node_whose_key_was_taken_away_does_not_train_after_a_resume(tmp_path):
    config = RunConfig(clients=2, rounds=5, epochs=1, sparsity=0.9)
    with Processes(tmp_path, config) as federation:
        serve = federation.serve()
        nodes = [federation.join(client) for client in range(2)]
        federation.until(lambda: rounds_done(federation) >= 2, 300)
        serve.terminate()
        assert serve.wait(120) == 130
        done = rounds_done(federation)
        (tmp_path / "keys/node-1.pub").unlink()
        where = ["--keys", "keys", "--host", "127.0.0.1", "--port", federation.port]
        again = federation.start("again", "serve", "--out", "run", "--resume", *where)
        assert again.wait(400) == 0, federation.words("again")
        history = read_history(federation.out / "history.jsonl")
        assert done < 5 and [entry.clients for entry in history] == [2] * done + [1] * (5 - done)
        assert all("client 1" not in entry.client_bytes for entry in history[done:])
        assert nodes[1].wait(120) == 2 and "this key is not registered" in federation.words("join-1")
        assert nodes[0].poll() is None


def test_sigterm_to_the_example_leaves_no_processes(tmp_path):
    script = Path(__file__).resolve().parents[3] / "examples/flower-quickstart/run.py"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-u", script, "sparse"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 200
        while "flwr-clientapp" not in commands(process.pid) and time.monotonic() < end:
            time.sleep(0.2)
        assert "flower-superlink" in commands(process.pid) and "flower-supernode" in commands(process.pid)
        started = descendants(process.pid)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 130, (tmp_path / "log").read_text()
        time.sleep(3)
        assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    finally:
        process.kill()


def commands(pid: int) -> str:
    """The command lines of the processes below one."""
    found = []
    for child in descendants(pid):
        try:
            found.append(Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return "\n".join(found)
