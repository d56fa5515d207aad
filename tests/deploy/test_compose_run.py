"""The commands of compose.yaml as plain processes: keys, server, three clients and health checks, to the run's end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsparsify.federation.flower.processes import free_port
from fedsparsify.federation.ledger import read_history

DOCKER = Path(__file__).resolve().parents[2] / "deploy/docker"


@pytest.mark.slow
@pytest.mark.flower
def test_the_commands_of_compose_run(tmp_path):
    services = pytest.importorskip("yaml").safe_load((DOCKER / "compose.yaml").read_text())["services"]
    (tmp_path / "run.toml").write_text((DOCKER / "run.toml").read_text().replace("rounds = 20", "rounds = 3"))
    port, page = free_port(), free_port()

    def command(name: str, metrics: int) -> list[str]:
        """A service's command, with this machine's folders, names and ports in the place of the container's."""
        number = name.rpartition("-")[2]
        mounted = f"{tmp_path}/keys/federation"
        moved = [
            ("/keys/federation", mounted),
            ("--keys=/keys", f"--keys={mounted}"),
            ("/keys/ca.crt", f"{mounted}/ca.crt"),
            ("=/keys/node", f"={mounted}/node-{number}"),
            ("/state", f"{tmp_path}/{name}"),
            ("/run.toml", f"{tmp_path}/run.toml"),
            ("server:8000", f"localhost:{port}"),
            ("9100", str(metrics)),
            ("0.0.0.0:8080", f"127.0.0.1:{page}"),
        ]
        words = []
        for word in services[name]["command"]:
            old, new = next(((old, new) for old, new in moved if old in word), ("", ""))
            words.append(word.replace(old, new) if old else word)
        return [sys.executable, "-m", "fedsparsify", *words, *([f"--port={port}"] if name == "server" else [])]

    def healthy(name: str, metrics: int) -> bool:
        _, _, flag, code = services[name]["healthcheck"]["test"]
        return not subprocess.run(
            [sys.executable, flag, code.replace("9100", str(metrics))], capture_output=True
        ).returncode

    def until(condition) -> None:
        end = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < end, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.5)

    (tmp_path / "keys").mkdir()
    subprocess.run(command("keys", 0), check=True)
    started, ports = [], {name: free_port() for name in services if name != "keys"}
    try:
        for name, metrics in ports.items():
            with (tmp_path / f"{name}.log").open("wb") as log:
                env = {**os.environ, "HOME": str(tmp_path / name)}
                started.append(subprocess.Popen(command(name, metrics), stdout=log, stderr=log, env=env, cwd=tmp_path))
            until(lambda name=name, metrics=metrics: healthy(name, metrics))
        assert started[0].wait(300) == 0, (tmp_path / "server.log").read_text()[-2000:]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)
    history = read_history(tmp_path / "server/run/history.jsonl")
    assert [entry.clients for entry in history] == [3, 3, 3]
