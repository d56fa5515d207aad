"""`--quiet` and `--json`: what is on which stream."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from fedsparsify.cli.json_lines import JsonLines
from fedsparsify.federation.ledger import Entry

ENTRY = Entry(
    round=1,
    accuracy=0.5,
    **dict.fromkeys(("loss", "train_loss", "target_sparsity", "sparsity", "seconds"), 0.0),
    **dict.fromkeys(("nonzero", "clients", "download_params", "upload_params", "paper_params"), 1),
)
SMALL = ("--rounds", 2, "--epochs", 1, "--clients", 2, "--method", "fedavg")


@pytest.mark.slow
def test_json_is_one_object_per_round_and_nothing_else(elsewhere):
    (elsewhere / "mine.py").write_text(
        "import os\nfrom fedsparsify.networks import fc\n"
        "def loud(shape, classes):\n    print('made')\n    os.system('echo child')\n    return fc(shape, classes)\n"
    )
    words = [sys.executable, "-m", "fedsparsify", "run", *map(str, SMALL), "--network", "mine:loud", "--out", "a"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [line["round"] for line in lines] == [1, 2]
    assert [json.loads(line) for line in (elsewhere / "a/history.jsonl").read_text().splitlines()] == lines
    assert all(word in done.stderr for word in ("made", "child", "Page: ", "accuracy"))


def test_what_is_not_a_number_is_null(here):
    code, out, said = here("run", *SMALL, "--lr", 1e30, "--out", "a", "--json")
    assert code == 2 and out == "" and "training diverged" in said  # every client diverged, in the first round
    written = []
    entry = replace(ENTRY, loss=float("nan"), phases={"wait": float("-inf"), "send": 1.5})
    JsonLines(written.append).show(entry, run="mine")
    (made,) = map(json.loads, written)
    assert made["run"] == "mine" and made["loss"] is None and made["phases"] == {"wait": None, "send": 1.5}


def test_json_of_a_resumed_run_has_every_round(here):
    assert here("run", *SMALL, "--out", "a")[0] == 0
    code, out, said = here("run", "--out", "a", "--resume", "--json", "--quiet")
    assert code == 0 and [json.loads(line)["round"] for line in out.splitlines()] == [1, 2]
    assert said.startswith("a/model.fsz: accuracy 0.") and said.count("\n") == 1


def test_quiet_leaves_one_line(here):
    code, out, said = here("run", *SMALL, "--rounds", 3, "--out", "a", "--quiet", "--patience", 1, "--lr", 1e-9)
    assert code == 0 and said == ""
    assert out.startswith("a/model.fsz: accuracy 0.") and "stopped early: acc" in out and out.count("\n") == 1


def test_quiet_leaves_warnings_and_errors(here, elsewhere):
    words = ("--data", "mine:data", "--method", "mine:Half", "--clients", 2, "--rounds", 1, "--epochs", 1, "--out", "a")
    (elsewhere / "mine.py").write_text(
        "import numpy as np\nfrom dataclasses import dataclass, replace\nimport fedsparsify as fs\n"
        "def data():\n    return fs.load_dataset('digits')\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Half(fs.Method):\n    'x'\n"
        "    def client(self, round, model):\n        update = yield fs.Fit(model)\n        Half.asked += 1\n"
        "        return replace(update, samples=Half.asked % 2)\nHalf.asked = 0\n"
    )
    code, out, said = here("run", *words, "-q")
    assert code == 0 and out.startswith("a/model.fsz: ")
    assert "was left out: it has no samples" in said and said.count("\n") == 1
    code, out, said = here("run", *words, "-q")
    assert code == 2 and out == "" and "already holds a run" in said


@pytest.mark.parametrize("flags", [(), ("--quiet",)])
def test_a_sweep_says_which_run(here, elsewhere, flags):
    (elsewhere / "s.toml").write_text("rounds = 2\nepochs = 1\nclients = 2\n[sweep]\nseed = [1, 2]\n")
    code, out, said = here("sweep", "s.toml", "--json", *flags)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and sorted((line["run"], line["round"]) for line in lines) == [
        (f"seed-{seed}", t) for seed in (1, 2) for t in (1, 2)
    ]
    assert ("runs/s/report.html: 2 runs" in said) == bool(flags) and ("accuracy" in said) != bool(flags)


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_the_run(elsewhere):
    words = [sys.executable, "-m", "fedsparsify", "run", "--rounds", "40", "--epochs", "1", "--clients", "2"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, "--out", "a", "--json"], **streams) as run:
        assert json.loads(run.stdout.readline())["round"] == 1
        run.stdout.close()
        said = run.stderr.read()
        assert run.wait() == 0 and "Nobody reads the JSON lines" in said
    assert (elsewhere / "a/model.fsz").exists()
