"""The real command, as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import click
import numpy as np
import pytest

from fedsparsify.cli.run import _collect, command
from fedsparsify.config import to_toml
from fedsparsify.errors import ConfigError
from fedsparsify.federation.checkpoint import Checkpoint
from fedsparsify.federation.ledger import read_history

SMALL = ["--rounds", "2", "--epochs", "1", "--clients", "4"]


def fedsparsify(*words, cwd=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "fedsparsify", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "120"} | environment,
        timeout=120,
    )


def test_the_embedded_default_with_a_method_of_ones_own(elsewhere):
    """A method in a file of its own, named by module:Class, with a setting of its own."""
    (elsewhere / "mine.py").write_text(
        '"""Prune every tensor to the same sparsity."""\n'
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "from fedsparsify import keep_top\n"
        "from fedsparsify.methods import Gradual\n"
        "from fedsparsify.options import option\n\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Uniform(Gradual):\n"
        '    """Each tensor keeps the same share of its weights."""\n\n'
        '    boost: float = option(1.0, "factor on the scores")\n\n'
        "    def scores(self, model, rng):\n"
        "        views = [np.abs(view.ravel()) for view in model.tensors().values()]\n"
        "        ranks = [np.argsort(np.argsort(view)) / view.size for view in views]\n"
        "        return self.boost * np.concatenate(ranks).astype(np.float32)\n"
    )
    done = fedsparsify("run", *SMALL, "--method", "mine:Uniform", "--sparsity", "0.5", "--set", "boost=2", "--out", "o")
    assert done.returncode == 0, done.stderr
    assert 'name = "mine:Uniform"' in (elsewhere / "o" / "config.toml").read_text()
    assert "boost = 2" in (elsewhere / "o" / "config.toml").read_text()
    assert json.loads((elsewhere / "o" / "history.jsonl").read_text().splitlines()[-1])["sparsity"] == 0.5
    resumed = fedsparsify("run", "--out", "o", "--resume")
    assert resumed.returncode == 0, resumed.stderr


def test_a_run_leaves_its_files_and_a_summary(elsewhere, here):
    done = fedsparsify("run", *SMALL, "--sparsity", 0.8, "--split", "classes:5")
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert "times" not in done.stderr
    assert done.stdout.rstrip().endswith("digits-fedsparsify-global-0.8/report.html")
    folder = elsewhere / "runs" / "digits-fedsparsify-global-0.8"
    names = {path.name for path in folder.iterdir()}
    files = {"config.toml", "history.jsonl", "model.fsz", "checkpoint.fsz", "partition.json", "report.html"}
    assert names == files | {"curves.png", "partition.png"}
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    _, second, _ = here("run", *SMALL, "--sparsity", 0.8, "--split", "classes:5")
    assert "digits-fedsparsify-global-0.8-2" in second


def test_flags_win_over_the_file_and_a_file_over_the_preset(elsewhere, here):
    (elsewhere / "c.toml").write_text(
        'rounds = 3\nepochs = 1\nclients = 3\n[method]\nname = "oneshot"\nsparsity = 0.6\n'
    )
    code, _, errors = here("run", "c.toml", "--rounds", 1, "--out", "o")
    assert code == 0, errors
    text = (elsewhere / "o" / "config.toml").read_text()
    assert "rounds = 1\n" in text
    assert "clients = 3\n" in text
    assert 'name = "oneshot"\nsparsity = 0.6' in text


def test_your_own_data_and_network(elsewhere, here):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.normal(size=(40, 6)) + 3 * y[:, None]).astype(np.float32)
    np.savez(elsewhere / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (elsewhere / "nets.py").write_text("from torch import nn\ndef tiny():\n    return nn.Linear(6, 2)\n")
    code, _, errors = here("run", *SMALL, "--data", "mine.npz", "--network", "nets:tiny", "--out", "o")
    assert code == 0, errors


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "--sparsity", "95"], "Did you mean 0.95?"),
        (["run", "--start", "99"], "t_0"),
        (["run", "--split", "classes:11"], "more classes a client"),
        (["run", "--clients", "5000"], "clients empty"),
        (["run", "--roundz", "3"], "--rounds"),
        (["run", "--rounds", "three"], "three"),
        (["run", "bad.toml"], "Did you mean 'rounds'?  (bad.toml, line 2)"),
        (["run", "none.toml"], "No such file"),
        (["run", "--data", "cut.npz"], "cut.npz"),
        (["run", "--data", "fashion-mnist"], "train-images-idx3-ubyte.gz"),
        (["run", "--method", "nope:Nope"], "no module 'nope'"),
        (["run", "--method", "math:pi"], "subclass"),
        (["run", "--device", "cuda:9"], "There is: cpu"),
        (["run", "--lr", "1e30", "--rounds", "1"], "lower lr"),
        (["run", "--set", "x"], "NAME=VALUE"),
        (["data", "cifar"], "Did you mean 'cifar10'"),
        (["datas"], "No such command"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(elsewhere, here, monkeypatch, words, says):
    (elsewhere / "bad.toml").write_text('data = "digits"\nroundz = 3\n')
    np.savez(elsewhere / "whole.npz", x_train=np.zeros((9, 9)))
    (elsewhere / "cut.npz").write_bytes((elsewhere / "whole.npz").read_bytes()[:100])
    (elsewhere / "data" / "fashion-mnist").mkdir(parents=True)
    (elsewhere / "data" / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b cut")
    monkeypatch.setenv("FEDSPARSIFY_DATA", str(elsewhere / "data"))
    code, _, said = here(*words)
    assert code == 2, said
    assert says in said
    assert "Traceback" not in said
    assert not any(path.suffix == ".partial" for path in elsewhere.rglob("*"))


def test_another_configuration_is_refused_on_resume(here):
    assert here("run", *SMALL, "--out", "o")[0] == 0
    code, _, errors = here("run", "--out", "o", "--resume", "--lr", "0.5")
    assert code == 2
    assert "lr 0.1 is now 0.5" in errors
    assert here("run", *SMALL, "--out", "o")[0] == 2


@pytest.mark.parametrize(
    "wishes",
    [[signal.SIGINT] * 3, [signal.SIGTERM, signal.SIGINT]],
    ids=["Ctrl-C three times", "SIGTERM, then Ctrl-C"],
)
def test_a_stopped_run_says_how_to_go_on(elsewhere, wishes):
    words = [sys.executable, "-m", "fedsparsify", "run", "--out", "o", "--rounds", "500"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (elsewhere / "o" / "history.jsonl").exists() or not (elsewhere / "o" / "history.jsonl").stat().st_size:
        time.sleep(0.01)
    for wish in wishes:
        process.send_signal(wish)
        time.sleep(0.01)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "fedsparsify run --out o --resume" in out
    assert "Traceback" not in errors
    assert not list((elsewhere / "o").glob(".*"))  # nothing half-written, and no lock
    last = read_history(elsewhere / "o" / "history.jsonl")[-1].round
    assert Checkpoint.load(elsewhere / "o" / "checkpoint.fsz").round == last


def test_help_teaches(elsewhere):
    text = fedsparsify("run", "--help").stdout
    for word in ("--sparsity", "classes:K", "model.fsz", "--resume", "[default: 4]"):
        assert word in text
    assert "fedsparsify-local" in fedsparsify("methods").stdout
    listing = fedsparsify("data").stdout
    assert "fashion-mnist" in listing
    assert "--download" in listing


def test_who_holds_what_as_a_figure(elsewhere):
    done = fedsparsify("data", "digits", "--split", "classes:2", "--figure", "who.png")
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "who.png").read_bytes().startswith(b"\x89PNG")
    assert "0, 1" in done.stdout


def collected(*words):
    """The config that a command line makes."""
    flags = command.make_context("run", [*map(str, words)]).params
    for name in ("track", "quiet", "as_json"):
        flags.pop(name)
    return _collect(flags.pop("config"), flags.pop("out"), flags.pop("resume"), flags)[0]


def test_flags_of_a_purge(tmp_path):
    made = collected("--score", "lamp", "--end", 0.75, "--exclude", "last", "--exclude", "*bias", "--min-density", 0.01)
    assert (made.method.score, made.method.end, made.method.min_density) == ("lamp", 0.75, 0.01)
    assert made.method.exclude == ("last", "*bias")
    (tmp_path / "run.toml").write_text(to_toml(made))
    assert collected(tmp_path / "run.toml") == made
    assert collected(tmp_path / "run.toml", "--exclude", "norms").method.exclude == ("norms",)


def test_one_flag_for_settings_of_two_types():
    """`--end` is a round or a fraction for purges, and a round for FedDST."""
    assert collected("--end", 15).method.schedule(15) == 0.9
    assert collected("--method", "feddst", "--end", 15).method.end == 15
    with pytest.raises(ConfigError, match=r"method\.end must be an integer\. Received: 0\.5"):
        collected("--method", "feddst", "--end", 0.5)
    with pytest.raises(click.BadParameter, match="'soon' is not a number"):
        collected("--end", "soon")
