"""Ten nodes: three die and come back, one sends garbage, one attacks; the ServerApp is killed. The run ends well."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from hostile import ATTACKS, NAMED
from real import Processes, kill, process_of

from fedsparsify import RunConfig, load, run
from fedsparsify.federation.ledger import read_history

# A node whose own code is not ours: every answer that its processes make carries noise for a model.
GARBAGE = """
import os
from dataclasses import replace
from fedsparsify.federation.flower import messages
content = messages.Answer.content
messages.Answer.content = lambda self: content(replace(self, model=os.urandom(5000)))
"""

HERE = str(Path(__file__).parent)  # `normed` and `hostile`, for processes


def starts_with(folder: Path, code: str) -> str:
    """A PYTHONPATH with which every Python process runs the code first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])


@pytest.mark.chaos
@pytest.mark.flower
@pytest.mark.slow
def test_chaos(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")])))
    config = RunConfig(
        network="normed:network",  # it has statistics to attack
        clients=10,
        rounds=len(ATTACKS),
        sparsity=0.9,
        min_clients=5,
        merge="geometric-median",
        max_samples=400,
    )
    chance = random.Random(7)
    victims = chance.sample(range(8), 3)
    # round after which something happens → what
    events = dict(zip(chance.sample(range(2, 10), 4), [*victims, "server"], strict=True))
    with Processes(tmp_path, config) as federation:
        serve = federation.serve("--deadline", 240)
        nodes = {}
        for client in range(8):
            nodes[client] = federation.join(client)
        for client, code in ((8, "import hostile; hostile.install()"), (9, GARBAGE)):
            with monkeypatch.context() as other:
                other.setenv("PYTHONPATH", starts_with(tmp_path / f"code-{client}", code))
                nodes[client] = federation.join(client)
        began, happened = time.monotonic(), []
        while serve.poll() is None:
            assert time.monotonic() < began + 3000, federation.words("serve")
            path = federation.out / "history.jsonl"
            done = read_history(path)[-1].round if path.exists() and path.read_text().endswith("\n") else 0
            for after in [after for after in events if after <= done]:
                what = events.pop(after)
                time.sleep(chance.uniform(0, 15))
                happened.append((after, what, round(time.monotonic() - began)))
                if what == "server":
                    os.kill(process_of(serve.pid, "flwr-serverapp"), signal.SIGKILL)
                else:
                    kill(nodes[what])
                    nodes[what] = federation.join(what)
            time.sleep(0.5)
        assert serve.returncode == 0, federation.words("serve")
    history = read_history(federation.out / "history.jsonl")
    undisturbed = run(config).history[-1]
    record = {
        "events (after round, what, second)": happened,
        "seconds": round(time.monotonic() - began),
        "clients a round": [entry.clients for entry in history],
        "refused": {entry.round: entry.refused for entry in history},
        "bounded": {entry.round: entry.bounded for entry in history},
        "accuracy": [history[-1].accuracy, undisturbed.accuracy],
        "sparsity": history[-1].sparsity,
    }
    print(json.dumps(record, indent=1))
    assert [entry.round for entry in history] == list(ATTACKS)
    assert load(federation.out / "model.fsz").sparsity == undisturbed.sparsity
    # Such a client takes the mean to 0.10 without norm_bound, and to 0.885 without max_samples.
    assert abs(history[-1].accuracy - undisturbed.accuracy) <= 0.04
    assert len(happened) == 4 and all("client 9" in entry.refused for entry in history)
    for entry in history:
        field, words = NAMED[ATTACKS[entry.round]]
        assert words in getattr(entry, field).get("client 8", ""), (entry.round, ATTACKS[entry.round])
