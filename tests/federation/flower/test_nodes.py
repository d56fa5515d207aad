"""Commands, keys, and what a node trains on: everything that needs no process of Flower's."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography import x509

from fedsparsify import RunConfig
from fedsparsify.cli import cli
from fedsparsify.config import to_toml
from fedsparsify.data import load_dataset, load_samples, partition
from fedsparsify.errors import ConfigError, DataError, RunError
from fedsparsify.federation.flower.client import Node
from fedsparsify.federation.flower.client_app import number_of
from fedsparsify.federation.flower.commands import Keys, Link, environment_variables, last_superlink_port, supernode
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.messages import Question
from fedsparsify.federation.flower.node_store import NodeStore
from fedsparsify.federation.flower.prepare import make_task
from fedsparsify.federation.flower.processes import Server, start
from fedsparsify.federation.flower.task import Task
from fedsparsify.federation.folder import RunFolder
from fedsparsify.federation.prepared import load_for
from fedsparsify.federation.simulated import Simulated
from fedsparsify.text import plain
from fedsparsify.wire.codec import decode, encode


def task(tmp_path, **settings) -> Task:
    return make_task(RunConfig(clients=3, **settings), RunFolder(tmp_path / "run"))


def test_a_task_survives_flowers_settings(tmp_path):
    made = task(tmp_path, method="prunefl")
    assert Task.read(made.settings()) == made
    assert made.name == task(tmp_path, method="prunefl").name != task(tmp_path, method="snip").name
    with pytest.raises(ConfigError, match="lack something"):
        Task.read({"config": ""})


def test_figures_of_the_machine_are_settled_before_nodes_hear_of_them(tmp_path):
    assert task(tmp_path, method={"name": "prunefl", "times": "measured"}).config.method.times[0].isdigit()


def test_what_needs_the_clients_samples_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="diagnose needs"):
        task(tmp_path, diagnose=True)


def test_a_node_has_its_part_of_the_runs_data_and_loads_it_once(tmp_path, monkeypatch):
    node = Node(task(tmp_path, split="classes:4"), NodeStore(tmp_path / "node"), "digits")
    digits = load_dataset("digits")
    mine = partition(digits.y_train, 3, "classes:4", node.task.config.seed)[2]
    x, y = node.samples(2)
    np.testing.assert_array_equal(x, digits.x_train[mine])
    monkeypatch.setattr("fedsparsify.federation.flower.client.load_samples", None)
    np.testing.assert_array_equal(node.samples(2)[1], y)


def test_a_node_with_data_of_its_own(tmp_path, elsewhere):
    digits = load_dataset("digits")
    pair = {"x_train": digits.x_train[:50], "y_train": digits.y_train[:50]}
    np.savez(tmp_path / "mine.npz", **pair)
    (tmp_path / "hospital.py").write_text(
        "import numpy as np\n"
        "def scans(): f = np.load('mine.npz'); return f['x_train'], f['y_train']\n"
        "def wrong(): f = np.load('mine.npz'); return f['x_train'][:, :, :4], f['y_train']\n"
        "def many(): f = np.load('mine.npz'); return f['x_train'], f['y_train'] + 10\n"
        "def none(): return 5\n"
    )
    for data in (str(tmp_path / "mine.npz"), "hospital:scans"):
        x, y = Node(task(tmp_path), NodeStore(tmp_path / "node"), data).samples(0)
        np.testing.assert_array_equal(x, pair["x_train"])
        np.testing.assert_array_equal(y, pair["y_train"])
    for data, reason in (
        ("wrong", "shape"),
        ("many", "classes 0 … 9"),
        ("none", "must give x_train, y_train"),
    ):
        with pytest.raises(DataError, match=reason):
            Node(task(tmp_path), NodeStore(tmp_path / "node"), f"hospital:{data}").samples(0)
    assert load_samples("digits").shape == digits.shape


def test_notes_keep_the_last_two_masks_and_survive_damage(tmp_path):
    store, masks = NodeStore(tmp_path), [np.arange(20) % n == 0 for n in (2, 3, 4)]
    for number, mask in enumerate(masks):
        store.keep_mask(bytes([number] * 8), mask)
    assert store.mask(bytes(8), 20) is None and store.names() == [bytes([1] * 8), bytes([2] * 8)]
    np.testing.assert_array_equal(store.mask(bytes([2] * 8), 20), masks[2])
    assert store.mask(bytes([2] * 8), 90) is None
    (tmp_path / "a-1.state.npz").write_bytes(b"damaged")
    assert store.state("a", 2) == {}


def test_state_goes_back_with_the_round(tmp_path):
    store = NodeStore(tmp_path)
    for round in (1, 2, 5):
        store.keep_state("run", round, {"m": np.full(3, round, np.float32), "count": round}, most=2)
    assert [store.state("run", round)["m"][0] for round in (2, 4, 5, 6)] == [1, 2, 2, 5]
    store.keep_state("run", 2, {"m": np.full(3, 9, np.float32), "count": 2, "rate": 0.1}, most=2)  # it is repeated
    back = store.state("run", 9)
    assert back["m"].tolist() == [9, 9, 9] and back["count"] == 2 and back["rate"] == 0.1
    assert store.state("other", 9) == {}


def test_numbers_of_nodes():
    assert (number_of({"client": 3}), number_of({"partition-id": 2}), number_of({})) == (3, 2, -1)
    with pytest.raises(ConfigError, match="must be a number"):
        number_of({"client": "three"})


def test_keys(tmp_path):
    make_keys(tmp_path / "keys", ["server.example.org", "10.0.0.1"], 2)
    secret = [tmp_path / "keys" / name for name in ("server.key", "node-0", "node-1")]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    ca, server = (
        x509.load_pem_x509_certificate((tmp_path / "keys" / f"{n}.crt").read_bytes()) for n in ("ca", "server")
    )
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org"]
    with pytest.raises(RunError, match="already holds keys"):
        make_keys(tmp_path / "keys", ["a"], 1)
    Keys(tmp_path / "keys").check()
    with pytest.raises(ConfigError, match=r"no ca\.crt"):
        Keys(tmp_path).check()


def test_security_is_on_unless_somebody_says_otherwise(tmp_path, elsewhere):
    (elsewhere / "run.toml").write_text(to_toml(RunConfig(clients=2, rounds=2)))
    runner = CliRunner()
    for command in (["serve", "run.toml"], ["join", "--superlink", "a:1"], ["join", "--superlink", "a:1", "--ca", "x"]):
        result = runner.invoke(cli, command)
        assert isinstance(result.exception, ConfigError) and "--insecure" in str(result.exception)
    assert runner.invoke(cli, ["keys", "keys", "--nodes", "2", "--host", "10.0.0.7"]).exit_code == 0
    shown = runner.invoke(cli, ["serve", "run.toml", "--keys", "keys", "--app-only"]).output
    assert "--enable-supernode-auth" in shown and "--insecure" not in shown
    assert "flower-superlink --host 127.0.0.1 --port" in shown  # whatever --host says
    assert "flower.proxy --host 0.0.0.0 --port 8000" in shown and "--keys keys" in shown
    assert shown.count("flwr supernode register keys/node-") == 2 and "flwr run runs/run/app" in shown
    assert (elsewhere / "runs/run/app/pyproject.toml").exists()


def test_commands(tmp_path):
    open_link = Link("0.0.0.0", 9, 7, None, tmp_path)
    assert open_link.superlink()[-1] == "--insecure" and open_link.address == "127.0.0.1:7"
    assert open_link.public_address == "127.0.0.1:9" and Link("::", 9, 7, None, tmp_path).public_address == "::1:9"
    assert "--keys" not in open_link.proxy() and open_link.proxy()[3:7] == ["--host", "0.0.0.0", "--port", "9"]
    secured = supernode("host:8000", tmp_path / "ca.crt", tmp_path / "key", 7, {"client": 1, "data": "a b"})
    assert "--insecure" not in secured and secured[-1] == 'client=1 data="a b"'
    assert environment_variables(tmp_path)["FLWR_TELEMETRY_ENABLED"] == "0"


def test_a_server_without_its_proxy_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(Link, "run", lambda self, app: ["sleep", "60"])
    server = Server(Link("127.0.0.1", 9, 7, None, tmp_path), lambda text: None)
    server.proxy_log.write_text("its last words\n")
    with subprocess.Popen(["true"]) as server._proxy:
        server._proxy.wait()
        with pytest.raises(RunError, match=r"the proxy is gone, and nodes cannot reach the server: its last words"):
            server.run_app(tmp_path, RunFolder(tmp_path / "run"), 3, print)


def test_a_superlink_keeps_its_port_and_certificates(tmp_path):
    """What is left of one that was killed hears at that port that its run is over."""
    assert last_superlink_port(tmp_path) is None
    link = Link("0.0.0.0", 9, 7123, Keys(tmp_path), tmp_path)
    link.write_connection()
    before = (link.certificates / "ca.crt").read_bytes()
    link.write_connection()
    assert last_superlink_port(tmp_path) == 7123 and (link.certificates / "ca.crt").read_bytes() == before
    (link.certificates / "server.crt").write_text("damaged")
    link.write_connection()
    assert (link.certificates / "ca.crt").read_bytes() != before
    (tmp_path / "config.toml").write_text("[superlink]\nfedsparsify = 3\n")
    assert last_superlink_port(tmp_path) is None


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for link, flag in (((port, 1), "--port"), ((1, port), "--superlink-port")):
            with (
                pytest.raises(RunError, match=f"choose another {flag}"),
                Server(Link("127.0.0.1", *link, None, tmp_path), print).open(),
            ):
                pass


def test_mistakes_are_one_line(tmp_path, elsewhere):
    runner = CliRunner()
    for command, words in (
        (["serve", "--insecure"], "needs a CONFIG.toml"),
        (["serve", "none.toml", "--insecure"], "cannot be read"),
        (["join", "--superlink", "a:1", "--ca", "no.crt", "--key", "no"], "there is no file no.crt"),
    ):
        assert words in str(runner.invoke(cli, command).exception)


def test_a_clients_process_loads_no_more_than_it_needs():
    """Each message is a process: saying hello does without torch, and training without its compiler."""
    code = (
        "import sys, fedsparsify.federation.flower.client_app; early = 'torch' in sys.modules\n"
        "import fedsparsify.federation.flower.client\n"
        "unwanted = {'torch._dynamo', 'numba', 'triton', 'fedsparsify.federation.journal'}\n"
        "heavy = unwanted & sys.modules.keys()\n"
        "sys.exit(str(heavy) if early or heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code]).returncode == 0


@pytest.mark.parametrize(("network", "backend"), [("fc", "native"), ("cnn", "sparse")])
def test_a_node_trains_by_the_back_end_of_a_simulation(tmp_path, network, backend):
    """To the bit; a worker's own autograd rounds in another way."""
    made = task(tmp_path, method="fedavg", epochs=1, network=network)
    simulated = Simulated(made.config, load_for(made.config))
    model = simulated.initial()
    if backend == "sparse":  # whose kernels take no dense model
        model = model.under(np.random.default_rng(0).random(model.mask.size) < 0.1)
    expected = list(simulated.ask(made.config.method, 1, model))
    assert simulated.environment.cohort.backend.name == backend
    answer = Node(made, NodeStore(tmp_path / "node"), "digits").answer(Question(1, 1, encode(model)))
    assert decode(answer.model, model.mask, model.layout).same_as(expected[1].model)


def test_flowers_commands_may_be_missing(tmp_path):
    with pytest.raises(RunError, match=r"there is no flower-nothing: pip install 'fedsparsify\[flower\]'"):
        start(["flower-nothing"], {"PATH": str(tmp_path)})


def test_what_a_client_wrote_is_fit_for_a_screen():
    assert plain("a\x1b[31mred\nline") == r"a\x1b[31mred\nline"
    assert len(plain("x" * 1000)) == 200


def test_a_node_with_other_targets_and_inputs(tmp_path, elsewhere):
    """The data forms and losses of a simulation, and the same update."""
    (elsewhere / "node_task.py").write_text(
        "import numpy as np, torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n"
        "def both():\n"
        "    rng = np.random.default_rng(0)\n"
        "    x = {'tokens': rng.integers(0, 9, (60, 4)), 'facts': rng.standard_normal((60, 2))}\n"
        "    y = x['facts'].sum(1)\n"
        "    return {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y, 'client': np.arange(60) % 3}\n"
        "def mine(): return {'x_train': {k: v[:9] for k, v in both()['x_train'].items()}, 'y_train': np.arange(9)}\n"
        "def wrong(): return {'x_train': both()['x_train'], 'y_train': np.zeros((60, 2))}\n"
        "def other(): return TensorDataset(torch.zeros(4, 3), torch.zeros(4))\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.layer = nn.Embedding(9, 3), nn.Linear(5, 1)\n"
        "    def forward(self, tokens, facts):\n"
        "        return self.layer(torch.cat([self.table(tokens).mean(1), facts], 1))\n"
    )
    config = {"data": "node_task:both", "network": "node_task:Net", "split": "column", "rounds": 1, "epochs": 1}
    made = task(tmp_path, loss="mse", method="fedavg", **config)
    assert Task.read(made.settings()) == made
    assert made.shape == {"tokens": (4,), "facts": (2,)}
    whole = load_for(made.config)
    simulated = Simulated(made.config, whole)
    model = simulated.initial()
    expected = list(simulated.ask(made.config.method, 1, model))
    for client in range(3):
        node = Node(made, NodeStore(tmp_path / f"node-{client}"), "node_task:both")
        answer = node.answer(Question(1, client, encode(model)))
        assert answer.samples == 20
        assert answer.loss == pytest.approx(expected[client].loss, rel=1e-5)
    own = Node(made, NodeStore(tmp_path / "own"), "node_task:mine")
    assert own.answer(Question(1, 0, encode(model))).samples == 9
    for data, says in (
        ("wrong", "must hold 1 targets per sample. Received: 2"),
        ("other", "must hold samples of shape"),
    ):
        with pytest.raises(DataError, match=says):
            Node(made, NodeStore(tmp_path / "own"), f"node_task:{data}").samples(0)
