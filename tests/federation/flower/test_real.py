"""The real thing: a SuperLink and SuperNodes on loopback, with TLS and keys."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from outside import Outside
from real import Processes, process_of

from fedsparsify import METHODS, RunConfig, load, run
from fedsparsify.federation.flower.commands import environment_variables, supernode
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.processes import free_port, running
from fedsparsify.federation.ledger import read_history

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="starts and ends processes as Linux does")


def check_equal(federation: Processes, tolerance: float = 1e-5) -> None:
    """The run's model and history are the simulator's. Sums differ in their order, hence a tolerance."""
    simulated = run(federation.config)
    model = load(federation.out / "model.fsz")
    np.testing.assert_array_equal(model.mask, simulated.model.mask)
    np.testing.assert_allclose(model.weights, simulated.model.weights, rtol=0, atol=tolerance)
    for mine, theirs in zip(read_history(federation.out / "history.jsonl"), simulated.history, strict=True):
        for name in ("round", "sparsity", "nonzero", "clients", "download_params", "upload_params", "refused"):
            assert mine[name] == theirs[name], name
        assert mine.download_bytes == pytest.approx(theirs.download_bytes, rel=0.01)
        assert mine.upload_bytes == pytest.approx(theirs.upload_bytes, rel=0.01)
        assert sum(down for down, _ in mine.client_bytes.values()) == mine.download_bytes
        assert mine.phases["wait"] > 0


def attack(federation: Processes) -> None:
    """Try everything that a caller with `ca.crt` alone can try."""
    outside = Outside(federation.superlink, federation.folder / "keys/ca.crt")
    calls = outside.calls()
    assert set(calls.values()) == {404}, calls
    assert {"start-run", "stop-run", "list-nodes", "register-node", "pull-artifacts"} <= {
        path.removeprefix("/v1/control/") for path in calls
    }
    assert set(map(tuple, outside.tricks().values())) == {(404,)}
    assert set(outside.fleet_calls().values()) == {401, 412}
    assert set(outside.fleet_calls(bytes(1 << 17)).values()) == {413}
    port = int(re.search(r"flower-superlink --host 127\.0\.0\.1 --port (\d+)", federation.words("serve"))[1])
    for address in ("127.0.0.2", socket.gethostbyname(socket.gethostname())):
        with socket.socket() as probe:  # a server at 0.0.0.0 would answer there
            assert address == "127.0.0.1" or probe.connect_ex((address, port))


@pytest.mark.slow
def test_the_same_model_as_the_simulator_in_spite_of_strangers(tmp_path):
    config = RunConfig(clients=2, rounds=3, epochs=2, sparsity=0.9, min_clients=2)
    make_keys(tmp_path / "strangers", ["127.0.0.1"], 1)
    with Processes(tmp_path, config) as federation:
        serve = federation.serve()
        federation.until(lambda: "flwr run" in federation.words("serve"), 180)
        clients = [federation.join(client) for client in range(2)]
        stranger = federation.join(7, key="strangers/node-0")
        misled = federation.join(8, ca="strangers/ca.crt", key="keys/node-0")
        nobody = supernode(federation.superlink, tmp_path / "keys/ca.crt", None, free_port(), {})
        with running(nobody, environment_variables(tmp_path / "keyless"), tmp_path / "keyless.log") as keyless:
            assert keyless.wait(180) and "this key is not registered" in federation.words("keyless")
        assert stranger.wait(180) == 2  # without --tries: nothing will mend
        assert "does not admit strangers/node-0: this key is not registered" in federation.words("join-7")
        assert misled.wait(180) == 2 and "CERTIFICATE_VERIFY_FAILED" in federation.words("join-8")
        attack(federation)
        assert serve.wait(600) == 0, federation.words("serve")
        assert all(client.poll() is None for client in clients)  # they wait for the next run
        assert "round 3/3" in federation.words("serve")
    check_equal(federation)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_as_in_the_simulator(tmp_path, method):
    table = {"name": method} | ({"tune": 1} if method == "oneshot-ft" else {})
    config = RunConfig(method=table, clients=2, rounds=3, epochs=1, min_clients=2, momentum=0.5, keep_optimizer=True)
    with Processes(tmp_path, config) as federation:
        serve = federation.serve()
        for client in range(2):
            federation.join(client)
        assert serve.wait(900) == 0, federation.words("serve")
    check_equal(federation)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["flwr-serverapp", "flower-superlink", "flower.proxy", "serve", "serve -9"])
def test_what_is_killed_at_the_server_goes_on_from_its_checkpoint(tmp_path, victim):
    config = RunConfig(clients=2, rounds=5, epochs=1, sparsity=0.9, min_clients=2, momentum=0.5, keep_optimizer=True)
    with Processes(tmp_path, config) as federation:
        serve = federation.serve()
        for client in range(2):
            federation.join(client)
        history = federation.out / "history.jsonl"
        federation.until(lambda: history.exists() and history.read_text().count("\n") > 1, 600)
        if victim == "serve":
            serve.terminate()  # as a service manager does
            assert serve.wait(180) == 130 and "Nothing is lost" in federation.words("serve")
        elif victim == "serve -9":
            superlink = Path(f"/proc/{process_of(serve.pid, 'flower-superlink')}")
            serve.kill()
            federation.until(lambda: not superlink.exists(), 60)
        else:
            os.kill(process_of(serve.pid, victim), signal.SIGKILL)
        if victim in ("flower-superlink", "flower.proxy"):
            assert serve.wait(300) == 2 and "--resume" in federation.words("serve")
            assert "is gone" in federation.words("serve")
        if victim != "flwr-serverapp":  # that one is started again by itself
            where = ["--keys", "keys", "--host", "127.0.0.1", "--port", federation.port]
            serve = federation.start("again", "serve", "--out", "run", "--resume", *where)
        assert serve.wait(900) == 0, federation.words("serve") + federation.words("again")
    check_equal(federation)


@pytest.mark.flower
@pytest.mark.slow
def test_flowers_simulation_engine_runs_the_same_app(tmp_path):
    pytest.importorskip("ray")
    config = RunConfig(clients=3, rounds=3, epochs=2, sparsity=0.9, min_clients=3)
    with Processes(tmp_path, config) as federation:
        serve = federation.start("serve", "serve", "config.toml", "--out", "run", "--ray", "--port", federation.port)
        assert serve.wait(900) == 0, federation.words("serve")
    check_equal(federation)


@pytest.mark.flower
@pytest.mark.slow
def test_the_example_runs_as_its_readme_says(tmp_path):
    script = Path(__file__).resolve().parents[3] / "examples/flower-quickstart/run.py"
    done = subprocess.run([sys.executable, script, "sparse"], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and "'zeros': 0.9499" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
