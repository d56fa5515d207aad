"""Many runs as one: the same runs, resumable, grouped by what they share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsparsify import load, run
from fedsparsify.errors import ConfigError, RunError
from fedsparsify.federation.ledger import read_history
from fedsparsify.federation.sweep import ENVIRONMENT, check_folder, expand, groups, selected, sweep
from fedsparsify.training.settings import Training

SMALL = {"rounds": 3, "epochs": 1, "clients": 4}
MIXED = {"method": ["fedavg", "fedsparsify-global", "snip", "feddst"], "sparsity": [0.5, 0.8], "seed": [1, 2]}


def test_every_combination_once():
    runs = expand(SMALL | {"sweep": MIXED})
    assert len(runs) == 2 * (1 + 3 * 2)  # fedavg has no sparsity, and takes part once a seed
    assert len({planned.name for planned in runs}) == len(runs)
    assert "fedsparsify-global_sparsity-0.8_seed-2" in {planned.name for planned in runs}
    assert all(planned.config.rounds == 3 for planned in runs)


def test_settings_of_runs_and_of_methods_may_vary():
    runs = expand(SMALL | {"sweep": {"split": ["iid", "classes:5"], "every": [1, 2], "exponent": [3]}})
    assert [planned.name for planned in runs] == [
        *("split-iid_every-1", "split-iid_every-2", "split-classes-5_every-1", "split-classes-5_every-2"),
    ]
    assert runs[1].config.method.every == 2


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({}, r"a table \[sweep\]"),
        ({"sparcity": [0.9]}, "Did you mean 'sparsity'"),
        ({"seed": 3}, "must be a list"),
        ({"seed": []}, "must be a list"),
        ({"sparsity": [95]}, "Did you mean 0.95"),
        ({"method": ["fedavgg"]}, "Did you mean 'fedavg'"),
        ({"method": [3]}, "names, or tables with a name. Received: 3"),
        ({"method": [{"sparsity": 0.5}]}, "names, or tables with a name"),
        ({"method.evry": [1, 2]}, "cannot vary 'method.evry'. Did you mean 'every'"),
        ({"method": {"evry": [1, 2]}}, "cannot vary 'method.evry'. Did you mean 'every'"),
        ({"training.lr": [1, 2]}, "cannot vary 'training.lr'. Did you mean 'lr'"),
        ({"anything.at.all": [1, 2]}, "cannot vary 'anything.at.all'. Choose from"),
        ({"mu": [0.1, 0.2]}, "cannot vary 'mu'. It is a setting of fedprox, not of this sweep's methods"),
        ({"seed": [1, 2, 1]}, r"sweep.seed names 1 twice: equal values are one run. Received: \[1, 2, 1\]"),
        ({"sparsity": [0.9, 0.90]}, "sweep.sparsity names 0.9 twice"),
        ({"exponent": [1, 1.0]}, "two runs that are the same: exponent-1 and exponent-1.0"),
        ({"method": ["random", "random"]}, "sweep.method names 'random' twice"),
        ({"method": ["random", {"name": "random", "sparsity": 0.9}]}, "two runs that are the same"),
        ({"method": ["random", "fedsparsify.methods.random:Random"]}, "two runs that are the same"),
    ],
)
def test_mistakes(lists, says):
    with pytest.raises(ConfigError, match=says):
        expand(SMALL | {"sweep": lists})


def test_a_sweep_that_is_no_table():
    with pytest.raises(ConfigError, match=r"a table \[sweep\]"):
        expand(SMALL | {"sweep": 3})


@pytest.fixture
def noisy(elsewhere):
    """The first method of docs/extending.md."""
    page = Path(__file__).parents[2] / "docs" / "extending.md"
    [text] = re.findall(r"```python\n(# mine\.py.*?)```", page.read_text(), re.DOTALL)
    (elsewhere / "noisy_of_the_docs.py").write_text(text)
    return "noisy_of_the_docs:Noisy"


@pytest.mark.parametrize("key", ["noise", "method.noise"])
def test_a_setting_of_a_users_own_method_may_vary(noisy, key):
    runs = expand(SMALL | {"method": {"name": noisy, "sparsity": 0.5}, "sweep": {key: [0.1, 0.2]}})
    assert [planned.name for planned in runs] == ["noise-0.1", "noise-0.2"]
    assert [planned.config.method.noise for planned in runs] == [0.1, 0.2]
    assert {planned.config.method.sparsity for planned in runs} == {0.5}


def test_several_methods_of_which_one_has_the_setting(noisy):
    runs = expand(
        SMALL | {"sweep": {"method": ["fedavg", "random", noisy], "noise": [0.1, 0.2], "sparsity": [0.5, 0.8]}}
    )
    assert [planned.name for planned in runs] == [
        "fedavg",
        *("random_sparsity-0.5", "random_sparsity-0.8"),
        *(f"noisy_of_the_docs-Noisy_noise-{n}_sparsity-{s}" for n in (0.1, 0.2) for s in (0.5, 0.8)),
    ]
    with pytest.raises(ConfigError, match=r"cannot vary 'noize'. Did you mean 'noise'"):
        expand(SMALL | {"sweep": {"method": ["fedavg", noisy], "noize": [0.1, 0.2]}})


def test_tables_of_one_method_are_runs_of_their_own():
    methods = [{"name": "random", "sparsity": 0.5}, {"name": "random", "sparsity": 0.8}]
    runs = expand(SMALL | {"sweep": {"method": methods}})
    assert [planned.config.method.sparsity for planned in runs] == [0.5, 0.8]
    assert len({planned.name for planned in runs}) == 2


def test_a_name_stays_one_folder_inside_the_sweeps():
    data = [
        "../../x.npz",
        "/etc/x.npz",
        "a/b.npz",
        "a-b.npz",
        "x" * 300 + ".npz",
        "y\x00\n.npz",
        "..:f",
        "~:f",
        "日" * 99 + ".npz",
    ]
    runs = expand(SMALL | {"network": "fc", "sweep": {"data": data}})
    names = [planned.name for planned in runs]
    assert len(set(names)) == len(data)
    for name in names:
        assert re.fullmatch(r"[\w.+-]+", name)
        assert ".." not in name
        assert len(name.encode()) < 200
    assert names[0] == "data-.-.-x.npz"


def test_runs_are_stacked_where_they_share_an_environment():
    runs = expand(SMALL | {"sweep": {"split": ["iid", "classes:5"], "seed": [1, 2, 3]}})
    assert [len(group) for group in groups(runs, most=8)] == [2, 1, 2, 1]
    assert [len(group) for group in groups(runs, most=1)] == [1] * 6
    assert [len(group) for group in groups(runs, most=100)] == [3, 3]


def test_stacked_runs_are_the_runs_they_would_have_been_alone(tmp_path):
    runs = expand(SMALL | {"sweep": MIXED})
    sweep(runs, tmp_path, max_models=100)
    for planned in runs:
        alone = run(planned.config)
        together = load(tmp_path / planned.name / "model.fsz")
        assert np.count_nonzero(alone.model.mask ^ together.mask) <= 4
        both = alone.model.mask & together.mask
        gap = np.abs(alone.model.trainable_weights - together.trainable_weights)[both].max()
        assert gap < 1e-3 * np.abs(together.weights).max(), planned.name
        entries = read_history(tmp_path / planned.name / "history.jsonl")
        assert [entry.round for entry in entries] == [entry.round for entry in alone.history]
        assert entries[-1].upload_bytes is not None


def test_an_error_in_one_run_stops_them_all_and_is_raised(tmp_path):
    runs = expand(SMALL | {"sweep": {"seed": [1, 2]}})

    def fail(planned, entry):
        if planned.name == "seed-2" and entry.round == 2:
            raise RunError("no more")

    with pytest.raises(RunError, match="no more"):
        sweep(runs, tmp_path, max_models=100, on_round=fail)
    sweep(runs, tmp_path, max_models=100)  # and goes on from there
    assert [len(read_history(tmp_path / planned.name / "history.jsonl")) for planned in runs] == [3, 3]


def test_what_is_finished_is_not_repeated(tmp_path):
    runs = expand(SMALL | {"sweep": {"seed": [1, 2]}})
    sweep(runs, tmp_path)
    finished = []
    sweep(runs, tmp_path, on_round=lambda planned, entry: finished.append(planned))
    assert not finished
    with pytest.raises(RunError, match="--resume"):
        check_folder(tmp_path, runs, resume=False)
    with pytest.raises(RunError, match="another configuration"):
        sweep(expand(SMALL | {"lr": 0.5, "sweep": {"seed": [1, 2]}}), tmp_path)


def test_runs_are_selected_by_name():
    runs = expand(SMALL | {"sweep": MIXED})
    assert selected(runs, []) == runs
    first = selected(runs, ["*seed-1"])
    assert len(first) == len(runs) / 2 and all(run.config.seed == 1 for run in first)
    names = [run.name for run in selected(runs, ["snip*seed-2", "fedavg_seed-?", "snip*0.8*"])]
    assert names == [
        *("fedavg_seed-1", "fedavg_seed-2", "snip_sparsity-0.5_seed-2", "snip_sparsity-0.8_seed-1"),
        "snip_sparsity-0.8_seed-2",
    ]
    with pytest.raises(ConfigError, match=r"name like 'SNIP\*'\. Its runs: fedavg_seed-1, .*, … \(14 runs\)\."):
        selected(runs, ["*seed-1", "SNIP*"])


def test_a_part_first_and_then_the_others(here, elsewhere):
    (elsewhere / "s.toml").write_text("rounds = 1\nepochs = 1\nclients = 2\n[sweep]\nseed = [1, 2, 3]\n")
    code, said, _ = here("sweep", "s.toml", "--out", "o", "--only", "seed-2")
    assert code == 0 and "1 run in o/" in said
    assert [path.parent.name for path in elsewhere.glob("o/*/model.fsz")] == ["seed-2"]
    before = (elsewhere / "o" / "seed-2" / "history.jsonl").read_bytes()
    code, said, _ = here("sweep", "s.toml", "--out", "o", "--only", "seed-1")
    assert code == 0 and "2 runs in o/" in said  # the report has those of before, too
    code, said, _ = here("sweep", "s.toml", "--out", "o", "--resume")
    assert code == 0 and "3 runs in o/" in said
    assert (elsewhere / "o" / "seed-2" / "history.jsonl").read_bytes() == before


def test_the_command_stopped_and_resumed(elsewhere):
    (elsewhere / "s.toml").write_text("rounds = 40\nepochs = 1\nclients = 4\n[sweep]\nseed = [1, 2, 3]\n")
    words = [sys.executable, "-m", "fedsparsify", "sweep", "s.toml", "--out", "o", "--max-models", "100"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(elsewhere.glob("o/*/checkpoint.fsz")):
        time.sleep(0.02)
    for wish in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process.send_signal(wish)
        time.sleep(0.01)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not list((elsewhere / "o").rglob(".*"))  # nothing half-written, and no lock
    assert "--resume" in out
    again = subprocess.run([*words, "--resume"], capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"})
    assert again.returncode == 0, again.stderr
    assert "3 runs in o/" in again.stdout
    assert len(list(elsewhere.glob("o/*/model.fsz"))) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(("key", "value", "reason"), [("device", "cuda", "not here"), ("precision", "bf16", "a GPU")])
def test_a_device_that_is_not_here_is_refused_before_anything_runs(tmp_path, key, value, reason):
    runs = expand({"rounds": 1, "epochs": 1, key: value, "sweep": {"seed": [1, 2]}})
    with pytest.raises(ConfigError, match=reason):
        sweep(runs, tmp_path)
    assert not (tmp_path / runs[0].name).exists()


def test_runs_that_differ_in_any_setting_of_training_are_not_stacked():
    assert {one.name for one in fields(Training)} - set(ENVIRONMENT) == {"rounds", "seed"}  # each run has its own
