"""What lies on a disk, whole or not, becomes runs and notes; never a crash."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from made_runs import TOTAL, write_grid, write_run

from fedsparsify.errors import RunError
from fedsparsify.report import environments_of, load_runs, write_packed
from fedsparsify.report.packed import kept_rounds, thinned
from fedsparsify.report.page import page_of
from fedsparsify.report.site import tables_of


def test_a_runs_folder(tmp_path):
    write_run(tmp_path / "a", method="fedsparsify-global", sparsity=0.9)
    (run,), notes = load_runs([tmp_path / "a"])
    assert notes == []
    assert (run.method, run.sparsity, run.seed, run.rounds, run.complete) == ("fedsparsify-global", 0.9, 1990, 6, True)
    assert run.total == TOTAL
    assert run.nonzero[-1] == 40
    assert run.sent_params[0] == 2 * 4 * TOTAL
    assert run.sent_params[-1] == 2 * 4 * (TOTAL + sum(run.nonzero[:-1]))
    assert run.sent_bytes == [4 * value for value in run.sent_params]
    assert run.paper_params[-1] == 4 * (TOTAL + 2 * sum(run.nonzero[:-1]) + 40)
    assert [layer.name for layer in run.layers] == ["1.weight", "1.bias", "3.weight"]
    assert sum(layer.kept for layer in run.layers) == 40


def test_mbit_counts_a_bit_for_each_masked_weight_of_local(tmp_path):
    write_run(tmp_path / "global", method="fedsparsify-global", sparsity=0.9)
    write_run(tmp_path / "local", method="fedsparsify-local", sparsity=0.9)
    by_name = {run.name.rpartition("/")[2]: run for run in load_runs([tmp_path])[0]}
    ours, theirs = by_name["global"].mbit(), by_name["local"].mbit()
    assert ours[0] == pytest.approx(32e-6 * by_name["global"].paper_params[0])
    assert theirs[2] - ours[2] == pytest.approx(3 * 4 * TOTAL / 1e6)


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_history_cut_off_in_a_line(tmp_path, cut):
    history = write_run(tmp_path / "a", sparsity=0.9) / "history.jsonl"
    history.write_text(history.read_text()[:-cut])
    (run,), notes = load_runs([tmp_path])
    assert run.round == ([1, 2, 3, 4, 5, 6] if cut == 1 else [1, 2, 3, 4, 5])
    if cut > 1:
        assert notes == [
            f"{tmp_path.name}/a: line 6 of history.jsonl is cut off or damaged; what precedes it is shown.",
            f"{tmp_path.name}/a stopped after round 5 of 6.",
        ]


@pytest.mark.parametrize("line", ["null", "[]", '{"round": 3}', '{"round": "x"}', "\x00\x00"])
def test_a_damaged_line_ends_what_is_shown(tmp_path, line):
    history = write_run(tmp_path / "a", sparsity=0.9) / "history.jsonl"
    lines = history.read_text().splitlines()
    history.write_text("\n".join([*lines[:2], line, *lines[3:]]))
    (run,), notes = load_runs([tmp_path])
    assert run.round == [1, 2]
    assert "line 3" in notes[0]


def test_everything_else_that_may_be_broken_is_a_note(tmp_path):
    write_run(tmp_path / "whole", sparsity=0.9)
    (write_run(tmp_path / "no-lines") / "history.jsonl").write_text("")
    (write_run(tmp_path / "no-history", seed=1) / "history.jsonl").unlink()
    (write_run(tmp_path / "bad-config", seed=2) / "config.toml").write_text("rounds = [")
    (write_run(tmp_path / "no-method", seed=3) / "config.toml").write_text("rounds = 3")
    (write_run(tmp_path / "bad-model", seed=4) / "model.fsz").write_bytes(b"FSZM\x01 cut")
    (write_run(tmp_path / "bad-partition", seed=5) / "partition.json").write_text("[[1,")
    (write_run(tmp_path / "bad-timing", seed=6) / "inference.json").write_text('{"latency_ms": 3}')
    (tmp_path / "other.json").write_text('{"mine": 1}')
    (tmp_path / "bad.json").write_text('{"format": "fedsparsify-runs/1", "runs": 3}')
    (tmp_path / "cut.json").write_text('{"format": ')
    runs, notes = load_runs([tmp_path])
    assert {Path(run.name).name for run in runs} == {"whole", "bad-model", "bad-partition", "bad-timing"}
    for name in ("no-lines", "no-history", "bad-config", "no-method", "bad-model", "bad-partition", "bad-timing"):
        assert sum(name in note for note in notes) == 1, name
    assert any("bad.json" in note for note in notes)
    assert any("cut.json" in note for note in notes)
    assert not any("other.json" in note for note in notes)


def test_an_empty_sweep_is_a_note_and_no_folder_an_error(tmp_path):
    (tmp_path / "sweep").mkdir()
    assert load_runs([tmp_path / "sweep"]) == ([], [f"{tmp_path / 'sweep'} holds no run."])
    with pytest.raises(RunError, match="there is no"):
        load_runs([tmp_path / "nothing"])
    (tmp_path / "mine.json").write_text("[1]")
    with pytest.raises(RunError, match="not a results file"):
        load_runs([tmp_path / "mine.json"])


def test_a_run_given_twice_counts_once(tmp_path):
    write_run(tmp_path / "a", sparsity=0.9)
    write_run(tmp_path / "b", sparsity=0.9, checkpoint_every=5)
    (run,), notes = load_runs([tmp_path / "a", tmp_path / "b"])
    assert run.name == "b"
    assert notes == ["b repeats a; the later one is shown."]


def test_packed_results_are_the_same_runs(tmp_path):
    folder = write_grid(tmp_path / "grid")
    runs, _ = load_runs([folder])
    paths = write_packed(environments_of(runs), tmp_path / "results")
    assert [path.name for path in paths] == ["digits-4-iid.json", "digits-4-classes-2.json"]
    again, notes = load_runs([tmp_path / "results"])
    assert notes == []
    wanted = {run.identity: run for run in runs}
    assert {run.identity for run in again} == wanted.keys()
    for run in again:
        old = thinned(wanted[run.identity])
        for name in ("round", "nonzero", "paper_params", "sent_params", "sent_bytes", "layers", "total", "table"):
            assert getattr(run, name) == getattr(old, name), name
        assert run.accuracy == pytest.approx(old.accuracy, abs=1e-5)
        assert run.diagnosis.keys() == old.diagnosis.keys()
    # Packing what was packed changes nothing, so that new runs can be added to a results folder.
    before = [path.read_bytes() for path in paths]
    write_packed(environments_of(again), tmp_path / "results")
    assert [path.read_bytes() for path in paths] == before


def test_what_clients_measured_is_read_packed_and_told_apart(tmp_path):
    write_run(tmp_path / "runs" / "a", sparsity=0.9, evaluate="both")
    write_run(tmp_path / "runs" / "b", sparsity=0.9, holdout=0.2)
    config = write_run(tmp_path / "runs" / "c", sparsity=0.9, seed=1) / "config.toml"
    config.write_text(re.sub("(evaluate|holdout) = .*\n", "", config.read_text()))  # of an older version
    for seed in (2, 3):
        write_run(tmp_path / "runs" / f"d{seed}", sparsity=0.9, seed=seed)
    runs, notes = load_runs([tmp_path / "runs"])
    (environment,) = environments_of(runs)
    assert notes == [] and [{*run.client_views} for run in runs] == [{"accuracy", "loss"}, *[set()] * 4]
    assert runs[0].client_views["accuracy"]["worst"] == pytest.approx([0.25, 0.3, 0.35, 0.4, 0.45, 0.5])
    assert [(one.label, len(one.runs)) for one in environment.series] == [
        ("FedSparsify-Global", 3),
        ("FedSparsify-Global (holdout 0.2)", 1),
        ("FedSparsify-Global (evaluate both, holdout 0.2)", 1),
    ]
    write_packed([environment], tmp_path / "results")
    again, _ = load_runs([tmp_path / "results"])
    (packed,) = [run.client_views for run in again if run.client_views]
    assert packed["loss"]["spread"] == pytest.approx(runs[0].client_views["loss"]["spread"], rel=1e-3)
    assert packed["accuracy"]["worst"] == runs[0].client_views["accuracy"]["worst"]


def test_which_rounds_are_kept(tmp_path):
    write_run(tmp_path / "a", rounds=100, method="oneshot-ft", sparsity=0.9)
    (run,), _ = load_runs([tmp_path])
    kept = [run.round[i] for i in kept_rounds(run)]
    assert kept == [1, *range(5, 81, 5), *range(81, 101)]
    assert 89 in kept and 90 in kept  # both sides of the purge
    table = json.loads(write_packed(environments_of([run]), tmp_path)[0].read_text())
    assert table["runs"][0]["round"] == kept
    assert "twentieth" in table["rounds_kept"]


def test_both_sides_of_a_purge_after_a_pause_are_kept(tmp_path):
    """Where a method purges now and then, what happens to the accuracy at a purge is what the figure is about."""
    write_run(tmp_path / "a", rounds=100, method={"name": "fedsparsify-global", "sparsity": 0.9, "every": 7})
    (run,), _ = load_runs([tmp_path])
    small = thinned(run)
    assert {6, 7, 34, 35, 62, 63} <= set(small.round) and not {8, 36, 64} & set(small.round)
    assert thinned(small) == small


def test_settings_that_differ_make_series_of_their_own(tmp_path):
    write_run(tmp_path / "a", sparsity=0.9)
    write_run(tmp_path / "b", sparsity=0.9, seed=1991)
    write_run(tmp_path / "c", sparsity=0.9, lr=0.5)
    write_run(tmp_path / "d", method={"name": "fedsparsify-global", "sparsity": 0.9, "every": 3})
    (environment,) = environments_of(load_runs([tmp_path])[0])
    found = {one.label: [Path(run.name).name for run in one.runs] for one in environment.series}
    assert found == {
        "FedSparsify-Global": ["a", "b"],
        "FedSparsify-Global (lr 0.5)": ["c"],
        "FedSparsify-Global (F = 3)": ["d"],
    }


def test_any_damage_to_any_file_still_gives_a_page(tmp_path):
    """Files cut, bytes changed, values replaced: sixty times, each from the whole."""
    write_run(tmp_path / "whole" / "a", sparsity=0.9, diagnose=True, evaluate="both")
    write_run(tmp_path / "whole" / "b", method="fedavg")
    write_packed(environments_of(load_runs([tmp_path / "whole"])[0]), tmp_path / "whole")
    files = sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file())
    rng = random.Random(8)
    for _ in range(60):
        path = rng.choice(files)
        before = path.read_bytes()
        path.write_bytes(damaged(before, rng))
        runs, notes = load_runs([tmp_path / "whole"])
        environments = environments_of(runs)
        assert page_of(environments, notes)
        assert tables_of(environments) or not runs or not any(run.complete for run in runs)
        path.write_bytes(before)


def damaged(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    values = [found.span() for found in re.finditer(rb"[-.\d]+|\"[\w:.-]+\"", data)]
    start, end = rng.choice(values) if values else (at, at + 1)
    replaced = data[:start] + rng.choice([b"null", b"-1", b"1e999", b'"x"', b"[]", b"{}", b"NaN"]) + data[end:]
    flipped = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return rng.choice([data[:at], flipped, replaced, data[:at] + data[at + 40 :]])
