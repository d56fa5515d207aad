"""A server that has no training samples: test samples alone, or none at all."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from fake import FakeGrid, play

from fedsparsify import RunConfig, load_dataset, run
from fedsparsify.cli import cli
from fedsparsify.config import load_config, make_config, to_toml
from fedsparsify.data import partition
from fedsparsify.errors import ClientError, ConfigError, DataError
from fedsparsify.federation.flower.prepare import make_task
from fedsparsify.federation.flower.server_data import server_dataset
from fedsparsify.federation.folder import RunFolder
from fedsparsify.toml import loads

BLIND = {"data": "clients", "shape": (1, 8, 8), "classes": 10, "lr": 0.1}


def hospitals(folder, clients: int, seed: int) -> list[str]:
    """The parts of the digits, as files that only their clients have."""
    digits = load_dataset("digits")
    names = []
    for client, part in enumerate(partition(digits.y_train, clients, "iid", seed)):
        names.append(str(folder / f"hospital-{client}.npz"))
        np.savez(names[-1], x_train=digits.x_train[part], y_train=digits.y_train[part])
    return names


def test_a_run_whose_server_has_no_samples_at_all(tmp_path, monkeypatch):
    """It ends with the model of a simulation that holds the same samples out."""
    config = RunConfig(**BLIND, clients=3, rounds=3, epochs=1, sparsity=0.9)
    names, start = hospitals(tmp_path, 3, config.seed), FakeGrid.__init__

    def with_data(self, *arguments):
        start(self, *arguments)
        self.data = dict(zip((100, 101, 102), names, strict=True))

    monkeypatch.setattr(FakeGrid, "__init__", with_data)
    over, _ = play(tmp_path, config)
    simulated = run(RunConfig(data="digits", lr=0.1, clients=3, rounds=3, epochs=1, sparsity=0.9, evaluate="clients"))
    np.testing.assert_array_equal(over.model.mask, simulated.model.mask)
    np.testing.assert_allclose(over.model.weights, simulated.model.weights, atol=1e-5)
    assert [entry.accuracy for entry in over.history] == pytest.approx(
        [e.accuracy for e in simulated.history], abs=0.01
    )
    assert over.facts["shape"] == [1, 8, 8] and over.facts["classes"] == 10 and over.facts["graph"]


def test_clients_of_such_a_run_need_samples_of_their_own(tmp_path, caplog):
    config = RunConfig(**BLIND, clients=2, rounds=1, epochs=1)
    with pytest.raises(ClientError, match="client 0: DataError"):  # what it says stays in the client's log
        play(tmp_path, config, deadline=0.5, wait=0.5, retries=0)
    assert "bring samples of their own: join --data" in caplog.text


def test_what_such_a_run_must_say(tmp_path):
    for table, words in (
        ({"data": "clients"}, r"needs the shape of a sample .* Received: shape \[\] and classes 0"),
        ({"data": "clients", "shape": [1, 8, 8]}, "and classes 0"),
        ({"data": "clients", "shape": [1, 0, 8], "classes": 10}, "each 1 or more"),
        ({"data": "clients", "shape": "one", "classes": 10}, "shape must be a list, each an integer"),
        ({"data": "clients", "shape": [8], "classes": 1}, "classes must be 2 or more"),
        ({"data": "clients", "shape": [8], "classes": -3}, "classes must be 2 or more"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_config(table)
    made = make_config({"data": "clients", "shape": [1, 8, 8], "classes": 10})
    assert (made.evaluate, made.holdout, made.shape) == ("clients", 0.2, (1, 8, 8))
    assert make_config(loads(to_toml(made))) == made
    (tmp_path / "run.toml").write_text('data = "clients"\nshape = [4]\nclasses = 3\nnetwork = "fc"\n')
    assert load_config(tmp_path / "run.toml").classes == 3
    with pytest.raises(ConfigError, match="a simulation needs a data set"):
        run(made)


def test_flags_say_the_same(elsewhere):
    said = CliRunner().invoke(cli, ["run", "--data", "clients", "--shape", "1,8,8", "--classes", "10"])
    assert isinstance(said.exception, ConfigError) and "a simulation needs a data set" in str(said.exception)
    said = CliRunner().invoke(cli, ["run", "--data", "digits", "--shape", "1,9,9", "--rounds", "1"])
    assert isinstance(said.exception, DataError) and "Received: [1, 9, 9] and 0" in str(said.exception)
    said = CliRunner().invoke(cli, ["run", "--data", "digits", "--shape", "1,x", "--rounds", "1"])
    assert "shape must be a list" in str(said.exception)
    several = ["--shape", "1", "--shape", "8", "--shape", "9"]
    said = CliRunner().invoke(cli, ["run", "--data", "digits", *several, "--rounds", "1"])
    assert "Received: [1, 8, 9] and 0" in str(said.exception)


def test_test_samples_alone(tmp_path):
    digits = load_dataset("digits")
    few = digits.y_test < 8
    path = tmp_path / "tests.npz"
    np.savez(path, x_test=(digits.x_test[few] * 16).astype(np.uint8), y_test=digits.y_test[few])
    found = server_dataset(RunConfig(data=str(path)))
    assert found.shape == (1, 8, 8) and found.classes == 8 and found.x_test.max() <= 16 / 255
    assert server_dataset(RunConfig(data=str(path), classes=10)).classes == 10
    np.savez(tmp_path / "bad.npz", x_test=digits.x_test)
    np.savez(tmp_path / "none.npz", x_test=digits.x_test[:0], y_test=digits.y_test[:0])
    (tmp_path / "text.npz").write_text("no zip")
    for name, words in (
        ("bad", "Missing: y_test"),
        ("none", "n > 0"),
        ("text", "cannot be read as an .npz"),
        ("gone", 'A server without samples has data = "clients"'),
    ):
        with pytest.raises(DataError, match=words):
            server_dataset(RunConfig(data=str(tmp_path / f"{name}.npz")))


def test_declared_data_are_not_loaded_where_clients_evaluate(tmp_path):
    config = RunConfig(data="nowhere:scans", shape=(3, 5, 5), classes=4, evaluate="clients", network="fc")
    found = server_dataset(config)
    assert found.shape == (3, 5, 5) and found.classes == 4 and len(found.x_test) == 0


@pytest.mark.parametrize(("loss", "outputs"), [("mse", 1), ("bce", 3)])
def test_other_targets_are_declared_by_the_loss(tmp_path, loss, outputs):
    config = RunConfig(data="clients", shape=(6,), classes=outputs, loss=loss, network="fc")
    found = server_dataset(config)
    assert found.outputs == outputs and found.shape == (6,) and found.targets != "classes"
    assert make_task(config, RunFolder(tmp_path / "run")).outputs == outputs
