"""Files, resume, and what survives a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from fedsparsify import RunConfig, load, run
from fedsparsify.errors import RunError
from fedsparsify.federation.checkpoint import Checkpoint
from fedsparsify.federation.ledger import read_history
from fedsparsify.stopping import uninterrupted
from fedsparsify.wire.artefact import load_facts

CONFIG = RunConfig(rounds=6, epochs=1, clients=4, momentum=0.5, keep_optimizer=True)


def bytes_of(folder):
    return (folder / "model.fsz").read_bytes()


def test_what_a_run_leaves(tmp_path):
    seen = []
    result = run(CONFIG, tmp_path / "run", on_round=seen.append)
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    keys = {"round", "accuracy", "loss", "target_sparsity", "sparsity", "nonzero", "clients", "seconds"}
    assert keys | {"download_params", "upload_params"} <= lines[0].keys()
    assert [entry.round for entry in seen] == [1, 2, 3, 4, 5, 6]
    assert result.history == seen
    assert load(tmp_path / "run" / "model.fsz").same_as(result.model)
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert RunConfig(**saved) == CONFIG
    assert load_facts(tmp_path / "run" / "model.fsz")["method"] == "fedsparsify-global"
    result.save(tmp_path / "saved.fsz")
    run(CONFIG).save(tmp_path / "without a folder.fsz")
    assert (tmp_path / "saved.fsz").read_bytes() == bytes_of(tmp_path / "run")
    assert (tmp_path / "without a folder.fsz").read_bytes() == bytes_of(tmp_path / "run")
    counts = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert np.sum(counts) == 1442


def test_nothing_on_disk_without_a_folder(elsewhere):
    run(RunConfig(rounds=1, epochs=1, clients=2))
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("every", [1, 2, 50])
def test_stopped_in_any_round_and_resumed_is_the_same_run(tmp_path, stop, every):
    config = RunConfig(rounds=6, epochs=1, clients=4, momentum=0.5, keep_optimizer=True, checkpoint_every=every)
    whole = run(config, tmp_path / "whole")

    def interrupt(entry):
        if entry.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "cut", on_round=interrupt)
    assert Checkpoint.load(tmp_path / "cut" / "checkpoint.fsz").round == stop  # no round is repeated
    with (tmp_path / "cut" / "history.jsonl").open("a") as file:
        file.write('{"round": 99, "accur')  # a line cut off while it was written
    resumed = run(config, tmp_path / "cut", resume=True)
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")
    assert resumed.model.same_as(whole.model)
    rounds = [entry.round for entry in read_history(tmp_path / "cut" / "history.jsonl")]
    assert rounds == [entry.round for entry in resumed.history] == [1, 2, 3, 4, 5, 6]
    assert [e.accuracy for e in resumed.history] == [e.accuracy for e in whole.history]


def test_kept_momentum_differs_from_a_fresh_one():
    fresh = RunConfig(rounds=3, epochs=1, clients=4, momentum=0.5)
    kept = RunConfig(rounds=3, epochs=1, clients=4, momentum=0.5, keep_optimizer=True)
    assert not run(fresh).model.same_as(run(kept).model)


def test_resuming_a_finished_run_plays_no_round_and_restores_its_model(tmp_path):
    run(CONFIG, tmp_path)
    before = bytes_of(tmp_path)
    (tmp_path / "model.fsz").unlink()
    assert len(run(CONFIG, tmp_path, resume=True).history) == 6
    assert bytes_of(tmp_path) == before


def test_a_run_is_never_overwritten(tmp_path):
    run(CONFIG, tmp_path)
    with pytest.raises(RunError, match=r"already holds a run.*--resume"):
        run(CONFIG, tmp_path)


def test_a_checkpoint_from_another_configuration_is_refused(tmp_path):
    run(CONFIG, tmp_path)
    other = RunConfig(rounds=6, epochs=1, clients=4, momentum=0.5, keep_optimizer=True, sparsity=0.5)
    with pytest.raises(RunError, match=r"method\.sparsity 0\.9 is now 0\.5"):
        run(other, tmp_path, resume=True)


def test_a_damaged_checkpoint_is_named(tmp_path):
    run(CONFIG, tmp_path)
    path = tmp_path / "checkpoint.fsz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunError, match=r"checkpoint cannot be read.*checkpoint\.fsz"):
        run(CONFIG, tmp_path, resume=True)


def test_a_history_shorter_than_the_checkpoint_is_named(tmp_path):
    run(CONFIG, tmp_path)
    (tmp_path / "history.jsonl").write_text("")
    with pytest.raises(RunError, match="ends at round 0, but the checkpoint is of round 6"):
        run(CONFIG, tmp_path, resume=True)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        run(CONFIG, tmp_path / "file" / "run")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    from fedsparsify.federation.ledger import Ledger

    with pytest.raises(RunError, match="No space left on device"):
        Ledger(tmp_path / "history.jsonl").append(run(RunConfig(rounds=1, epochs=1, clients=2)).history[0])


def test_ctrl_c_waits_for_the_write():
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        done.append("written")
    assert done == ["written"]


COMMAND = [
    *(sys.executable, "-m", "fedsparsify", "run", "--rounds", "12", "--epochs", "1", "--clients", "4"),
    *("--momentum", "0.5", "--keep-optimizer", "--resume", "--out"),
]


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path):
    """kill -9 on the real command, again and again, whatever it is doing."""
    run(replace(CONFIG, rounds=12), tmp_path / "whole")
    dice, kills = random.Random(os.getpid()), 0
    history = tmp_path / "cut" / "history.jsonl"
    for attempt in range(4):
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([*COMMAND, tmp_path / "cut"], stdout=log, stderr=log)
        if attempt == 3:
            break  # and let it end
        before = history.stat().st_size if history.exists() else -1
        while process.poll() is None and (history.stat().st_size if history.exists() else -1) == before:
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.15))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    assert process.wait() == 0, (tmp_path / "log").read_text()
    assert kills >= 2
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")
    assert [entry.round for entry in read_history(history)] == list(range(1, 13))
    assert not list((tmp_path / "cut").glob(".*.partial"))
