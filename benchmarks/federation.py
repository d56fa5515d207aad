"""A run over Flower beside plain Flower FedAvg on the same app: bytes that really pass, and seconds a round.

    python benchmarks/federation.py bytes [--rounds 20]      # the 1.6 M parameter cnn, to sparsity 0.95
    python benchmarks/federation.py seconds [--rounds 6]     # digits, fc

Two SuperNodes on this machine reach the SuperLink through a proxy that counts what passes, with TLS and node keys. The
samples of `bytes` are random pictures of CIFAR-10's shape, few, as their number does not change what travels.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedsparsify import RunConfig
from fedsparsify.data import load_dataset
from fedsparsify.federation.flower.commands import Keys, Link, environment_variables, supernode, write_app
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.prepare import make_task
from fedsparsify.federation.flower.processes import Server, free_port, running
from fedsparsify.federation.folder import RunFolder
from fedsparsify.federation.ledger import read_history

NODES = 2
PLAIN = Path(__file__).resolve().parent / "flower-fedavg"


class Proxy:
    """Passes TCP on, and counts."""

    def __init__(self, target: int) -> None:
        self._target, self.up, self.down = target, 0, 0
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pass, args=(client, server, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, "down"), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.up + self.down


class Bench:
    """A SuperLink behind a proxy, and nodes; `app` runs on them until it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_keys(folder / "keys", ["127.0.0.1"], NODES)

    def run(self, app: Path, history: Path, rounds: int, settings: str = "") -> tuple[list[float], list[int]]:
        """When each round ended, and what had passed by then; the first of both is the start of round 1."""
        with ExitStack() as stack:
            home, keys = self.folder / f"flower-{app.name}", Keys(self.folder / "keys")
            link = Link("127.0.0.1", free_port(), free_port(), keys, home)
            stack.enter_context(Server(link, lambda command: None).open())
            proxy = Proxy(link.port)
            for number in range(NODES):
                home = self.folder / f"{app.name}-{number}"
                home.mkdir()
                command = supernode(
                    f"127.0.0.1:{proxy.port}",
                    self.folder / "keys/ca.crt",
                    self.folder / f"keys/node-{number}",
                    free_port(),
                    {"client": number, "clients": NODES, "folder": str(home)},
                )
                stack.enter_context(running(command, environment_variables(home), home / "log"))
            time.sleep(5)
            command = link.run(app) + (["--run-config", settings] if settings else [])
            log = self.folder / f"{app.name}.log"
            process = stack.enter_context(running(command, environment_variables(link.home), log))
            times, counts = [], []
            before = proxy.total
            while process.poll() is None:
                lines = len(history.read_text().splitlines()) if history.exists() else 0
                while len(times) < lines:
                    times.append(time.time())
                    counts.append(proxy.total - before)
                time.sleep(0.1)
            if len(times) < rounds:
                raise SystemExit(log.read_text()[-3000:])
            return times, counts


def data_file(folder: Path, kind: str) -> tuple[Path, tuple[int, ...]]:
    """The samples of both sides."""
    rng = np.random.default_rng(0)
    if kind == "bytes":
        x, y = rng.standard_normal((80, 3, 32, 32), np.float32), np.arange(80) % 10
        parts = {"x_train": x[:64], "y_train": y[:64], "x_test": x[64:], "y_test": y[64:]}
    else:
        digits = load_dataset("digits")
        parts = {name: getattr(digits, name) for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(folder / "data.npz", **parts)
    return folder / "data.npz", parts["x_train"].shape[1:]


def ours(folder: Path, config: RunConfig) -> tuple[list[float], list[int], list[int]]:
    """Times and bytes of our app, and what its ledger says."""
    run = RunFolder(folder / "run")
    settings = make_task(config, run).settings() | {"out": str(run.path), "resume": False}
    write_app(folder / "ours", settings)
    times, counts = Bench(folder).run(folder / "ours", run.history, config.rounds)
    ledger = [(entry.download_bytes or 0) + (entry.upload_bytes or 0) for entry in read_history(run.history)]
    return times, counts, ledger


def theirs(folder: Path, config: RunConfig, shape: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """Times and bytes of plain Flower FedAvg; its history begins with round 0."""
    history = folder / "plain.txt"
    values = {"data": config.data, "network": config.network, "shape": ",".join(map(str, shape)), "lr": config.lr}
    values |= {"rounds": config.rounds, "epochs": config.epochs, "history": str(history)}
    settings = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
    times, counts = Bench(folder).run(PLAIN, history, config.rounds + 1, settings)
    return times, counts


def main() -> None:
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bytes", "seconds"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    rounds = options.rounds or (20 if options.what == "bytes" else 6)
    network = "cnn" if options.what == "bytes" else "fc"
    spans: dict[str, list[float]] = {"fedsparsify": [], "plain FedAvg": []}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            data, shape = data_file(Path(one), options.what)
            epochs = 1 if options.what == "bytes" else 4
            config = RunConfig(
                data=str(data), network=network, rounds=rounds, clients=NODES, epochs=epochs, sparsity=0.95,
                lr=0.005 if network == "cnn" else 0.1, min_clients=NODES,
            )  # fmt: skip
            times, counts, ledger = ours(Path(one), config)
            spans["fedsparsify"] += np.diff(times).tolist()
            plain_times, plain_counts = theirs(Path(two), config, shape)
            spans["plain FedAvg"] += np.diff(plain_times)[1:].tolist()  # as ours: from the end of round 1 on
    if options.what == "bytes":
        print("round  through the proxy      ledger   more")
        for number, (passed, said) in enumerate(zip(np.diff(counts, prepend=0), ledger, strict=True), 1):
            print(f"{number:5d} {passed:18,d} {said:12,d} {passed / said - 1:6.1%}")
        print(f"all   {counts[-1]:18,d} {sum(ledger):12,d} {counts[-1] / sum(ledger) - 1:6.1%}")
        print(f"plain FedAvg {plain_counts[-1]:,d} bytes: {plain_counts[-1] / counts[-1]:.2f}× as many")
        print("plain FedAvg by round:", np.diff(plain_counts).tolist())
    for name, found in spans.items():
        print(f"{name}: median {statistics.median(found):.1f} s a round, {min(found):.1f} … {max(found):.1f}")


if __name__ == "__main__":
    main()
