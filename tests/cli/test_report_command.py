"""`fedsparsify report`, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from made_runs import write_grid, write_run

from fedsparsify.report import environments_of, load_runs
from fedsparsify.report.paper_figures import figures_of
from fedsparsify.report.site import write_tables


def report(*words):
    command = [sys.executable, "-m", "fedsparsify", "report", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_runs_become_a_site_and_packed_results_the_same_site(tmp_path):
    write_grid(tmp_path / "sweep")
    done = report(tmp_path / "sweep", "--out", tmp_path / "site", "--pack", tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(f"Page: {tmp_path / 'site' / 'index.html'}")
    site = tmp_path / "site"
    drawn = sorted(path.stem for path in site.glob("figures/*.svg"))
    assert drawn == sorted(path.stem for path in site.glob("figures/*.png"))
    assert len(drawn) == 12
    packed = environments_of(load_runs([tmp_path / "results"])[0])
    assert sorted(name for name, _, _ in figures_of(packed)) == drawn
    write_tables(packed, tmp_path / "again")
    tables = [path for path in site.glob("tables/*") if path.name != "runs.csv"]  # which has the runs' own names
    assert len(tables) == 18
    for path in tables:
        assert path.read_text() == (tmp_path / "again" / path.name).read_text()


def test_packing_adds_to_what_a_folder_holds(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"run-{seed}", seed=seed)
        done = report(tmp_path / f"run-{seed}", "--out", tmp_path / "site", "--pack", tmp_path / "results")
        assert done.returncode == 0, done.stderr
        assert "1 run, 1 environment" in done.stdout
    assert sorted(run.seed for run in load_runs([tmp_path / "results"])[0]) == [1, 2]
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_models_are_timed(tmp_path):
    from fedsparsify import RunConfig, run

    run(RunConfig(rounds=1, epochs=1, clients=2, method="fedavg"), tmp_path / "runs" / "dense")
    run(RunConfig(rounds=1, epochs=1, clients=2, sparsity=0.9), tmp_path / "runs" / "sparse")
    done = report(tmp_path / "runs", "--out", tmp_path / "site", "--time", 0.1, "--batch", 4, "--threads", 1)
    assert done.returncode == 0, done.stderr
    timing = json.loads((tmp_path / "runs" / "sparse" / "inference.json").read_text())
    assert (timing["batch"], timing["threads"], timing["seconds"]) == (4, 1, 0.1)
    assert (tmp_path / "site" / "figures" / "inference.svg").exists()
    assert "our engine, batch 4, threads: 1" in (tmp_path / "site" / "tables" / "table-digits-2-iid.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none"], "there is no none"),
        (["run", "--at", "90"], "a fraction in [0, 1)"),
        (["run", "--time", "-1"], "--time"),
        (["config.json"], "not a results file of ours"),
        ([], "Missing argument"),
        (["run", "--out", "config.json"], "cannot be made"),
    ],
)
def test_bad_input_is_one_clear_line(elsewhere, words, says):
    write_run(elsewhere / "run", sparsity=0.9)
    (elsewhere / "config.json").write_text("{}")
    done = report(*words)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_sweep_gives_a_page_with_a_note(elsewhere):
    (elsewhere / "sweep").mkdir()
    done = report("sweep")
    assert done.returncode == 0, done.stderr
    assert "Note: sweep holds no run." in done.stdout
    assert "sweep holds no run" in (elsewhere / "site" / "index.html").read_text()
