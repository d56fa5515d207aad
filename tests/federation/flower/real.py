"""A federation of real processes on this machine, as a user starts it: `serve`, `join`, and Flower under them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fedsparsify.config import RunConfig, to_toml
from fedsparsify.federation.flower.commands import environment_variables
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.processes import free_port

FEDSPARSIFY = [sys.executable, "-m", "fedsparsify"]


class Processes:
    """A folder with keys, a server and nodes; everything is ended with the block."""

    def __init__(self, folder: Path, config: RunConfig, nodes: int | None = None) -> None:
        self.folder, self.config, self.port = folder, config, free_port()
        self.out = folder / "run"
        make_keys(folder / "keys", ["127.0.0.1"], config.clients if nodes is None else nodes)
        (folder / "config.toml").write_text(to_toml(config))
        self.started: list[subprocess.Popen[bytes]] = []
        self.superlink = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        """One of our commands, in the background, with its words in a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [*FEDSPARSIFY, *map(str, arguments)]
            env = environment_variables(None)
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=env)
        self.started.append(process)
        return process

    def serve(self, *more: object) -> subprocess.Popen[bytes]:
        what = ["serve", "config.toml", "--out", "run", "--keys", "keys", "--host", "127.0.0.1", "--port", self.port]
        return self.start("serve", *what, *more)

    def join(self, client: int, *more: object, key: str = "", ca: str = "keys/ca.crt") -> subprocess.Popen[bytes]:
        what = ["join", "--superlink", self.superlink, "--ca", ca, "--key", key or f"keys/node-{client}"]
        return self.start(f"join-{client}", *what, "--client", client, *more)

    def words(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, condition, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.words("serve")[-2000:]
            time.sleep(0.2)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and of what it started in groups of their own as well."""
    for child in descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    process.kill()
    process.wait()


def descendants(pid: int) -> list[int]:
    """The processes below one, from /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    below, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        below += new
    return below


def process_of(pid: int, word: str) -> int:
    """The process below `pid` whose command line has that word."""
    for child in descendants(pid):
        command = Path(f"/proc/{child}/cmdline")
        if command.exists() and word.encode() in command.read_bytes():
            return child
    raise AssertionError(f"there is no {word}")
