"""The real thing, as an operator runs it: keys that are taken away, nodes that are late, signals. With TLS and keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from real import Processes, descendants

from fedsparsify import RunConfig, load_dataset
from fedsparsify.data import partition
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
        end = time.monotonic() + 20
        while (left := [pid for pid in started if lives(pid)]) and time.monotonic() < end:
            time.sleep(0.2)
        assert left == []
    finally:
        process.kill()


def lives(pid: int) -> bool:
    """Whether a process is there, and more than an entry that its parent has not read yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def commands(pid: int) -> str:
    """The command lines of the processes below one."""
    found = []
    for child in descendants(pid):
        try:
            found.append(Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return "\n".join(found)


def test_a_node_that_was_stopped_takes_part_again(tmp_path):
    config = RunConfig(clients=3, rounds=10, epochs=1, sparsity=0.9)
    with Processes(tmp_path, config) as federation:
        serve = federation.serve("--deadline", 30)
        nodes = [federation.join(client) for client in range(3)]
        federation.until(lambda: rounds_done(federation) >= 1, 300)
        stopped = [nodes[2].pid, *descendants(nodes[2].pid)]
        signal_all(stopped, signal.SIGSTOP)
        history = federation.out / "history.jsonl"
        federation.until(lambda: "no answer within 30 s" in history.read_text(), 200)
        signal_all(stopped, signal.SIGCONT)
        back = rounds_done(federation)
        assert serve.wait(900) == 0, federation.words("serve")
    entries = read_history(history)
    took = [entry.round for entry in entries if "client 2" not in entry.refused]
    print("rounds with client 2:", took, "it was let go on after round", back, "seconds", [e.seconds for e in entries])
    assert back < 8 and [t for t in took if t > back + 2] == list(range(back + 3, 11))
    assert all(entry.answered == entry.clients <= entry.asked <= 3 for entry in entries)
    words = federation.words("serve")
    assert "(3 of 3 were wanted)" in " ".join(words.split()), words[-2000:]


def test_a_run_waits_for_others_where_a_client_is_refused(tmp_path):
    config = RunConfig(clients=3, rounds=2, epochs=1, sparsity=0.9, min_clients=2)
    np.savez(tmp_path / "other.npz", x_train=np.zeros((9, 1, 4, 4), "f"), y_train=np.arange(9))
    with Processes(tmp_path, config) as federation:
        serve = federation.serve("--wait", 60, "--retries", 0)
        federation.join(0)
        federation.join(1, "--data", "other.npz")
        log = federation.out / "flower/run.log"
        federation.until(lambda: log.exists() and "round 1 is repeated" in log.read_text(), 300)
        federation.join(2)
        assert serve.wait(400) == 0, federation.words("serve")
    entries = read_history(federation.out / "history.jsonl")
    assert [entry.clients for entry in entries] == [2, 2] and all("client 1" in entry.refused for entry in entries)
    assert "lower lr" not in log.read_text() and "no client answered" not in log.read_text()


def test_hospitals_without_any_data_at_the_server(tmp_path):
    """A config of a shape and classes; each client has a file of its own, and evaluates on what it holds out."""
    digits = load_dataset("digits")
    config = RunConfig(data="clients", shape=(1, 8, 8), classes=10, lr=0.1, clients=2, rounds=3, epochs=2, sparsity=0.9)
    for client, part in enumerate(partition(digits.y_train, 2, "iid", config.seed)):
        np.savez(tmp_path / f"hospital-{client}.npz", x_train=digits.x_train[part], y_train=digits.y_train[part])
    with Processes(tmp_path, config) as federation:
        serve = federation.serve()
        for client in range(2):
            federation.join(client, "--data", f"hospital-{client}.npz")
        assert serve.wait(600) == 0, federation.words("serve")
    entries = read_history(federation.out / "history.jsonl")
    views = [entry.client_views["accuracy"] for entry in entries]
    print(json.dumps(views), [entry.phases for entry in entries])
    assert all(view["clients"] == 2 and view["worst"] <= view["mean"] for view in views)
    assert [entry.accuracy for entry in entries] == pytest.approx([view["mean"] for view in views])
    assert views[-1]["mean"] > 0.5 and (federation.out / "report.html").exists()
    words = " ".join(federation.words("serve").split())
    assert "worst client" in words and "spread" in words


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes, as far as they are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
