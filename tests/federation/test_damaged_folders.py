"""A run folder that was damaged says how to go on; it is never begun again without a word."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from conftest import small_model

from fedsparsify import RunConfig, run
from fedsparsify.errors import RunError
from fedsparsify.federation.checkpoint import Checkpoint
from fedsparsify.federation.ledger import read_history

CONFIG = RunConfig(rounds=6, epochs=1, clients=2, momentum=0.5, keep_optimizer=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was stopped after round 4."""
    folder = tmp_path_factory.mktemp("whole") / "run"

    def stop(entry):
        if entry.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, folder, on_round=stop)
    return folder


def lines(folder):
    return (folder / "history.jsonl").read_text().splitlines(keepends=True)


def write(name, make):
    return lambda folder: (folder / name).write_bytes(make((folder / name).read_bytes()))


def remove(name):
    return lambda folder: (folder / name).unlink()


def with_line(number, text):
    def damage(folder):
        known = lines(folder)
        known[number - 1] = text
        (folder / "history.jsonl").write_bytes(b"".join(t if isinstance(t, bytes) else t.encode() for t in known))

    return damage


def of_another_run(folder):
    run(replace(CONFIG, rounds=4, lr=0.5), folder.parent / "other")
    shutil.copy(folder.parent / "other" / "checkpoint.fsz", folder)


def of_another_network(folder):
    """Without a word of its config, as older versions wrote it."""
    Checkpoint(4, small_model([1, 2, 3])).save(folder / "checkpoint.fsz")


def of_a_later_round(folder):
    replace(Checkpoint.load(folder / "checkpoint.fsz"), round=9).save(folder / "checkpoint.fsz")


def a_model(folder):
    run(CONFIG).save(folder / "checkpoint.fsz")


def twice(folder):
    known = lines(folder)
    (folder / "history.jsonl").write_text("".join(known[:2] + known[1:]))


DELETE = r"delete .*checkpoint\.fsz and .*history\.jsonl"
BOTH = r"delete .*history\.jsonl and .*checkpoint\.fsz"
DAMAGE = {
    "a shorter history": (write("history.jsonl", lambda b: b[: b.index(b"\n") + 1]), rf"ends at round 1.*{BOTH}"),
    "an empty history": (write("history.jsonl", lambda b: b""), rf"ends at round 0.*{BOTH}"),
    "no history": (remove("history.jsonl"), rf"ends at round 0.*{BOTH}"),
    "a damaged line": (with_line(2, '{"round": 2, "accu\n'), rf"line 2 is not a round.*{BOTH}"),
    "a line that is not text": (with_line(2, b"\xff\xfe\n"), rf"line 2 is not a round.*{BOTH}"),
    "a line of another kind": (with_line(3, "[3]\n"), rf"line 3 is not a round.*{BOTH}"),
    "a line of text for numbers": (with_line(1, '{"round": "1"}\n'), rf"line 1 is not a round.*a number.*{BOTH}"),
    "a deep line": (with_line(1, "[" * 100_000 + "\n"), rf"line 1 is not a round.*{BOTH}"),
    "a line that is missing": (with_line(2, ""), rf"line 2 is of round 3, after round 1.*{BOTH}"),
    "a line twice": (twice, rf"line 3 is of round 2, after round 2.*{BOTH}"),
    "an empty config": (write("config.toml", lambda b: b""), r"config\.toml is empty or cut off.*Delete it and resume"),
    "a config that is cut": (write("config.toml", lambda b: b[: b.index(b"[method]") - 20]), "Delete it and resume"),
    "a config that is not TOML": (write("config.toml", lambda b: b"\xff = ="), "is not TOML.*Delete it and resume"),
    "an unknown setting": (write("config.toml", lambda b: b"nope = 1\n" + b), "cannot be used.*Delete it and resume"),
    "no checkpoint": (remove("checkpoint.fsz"), rf"checkpoint\.fsz is gone: .* holds 4 rounds.*{DELETE}"),
    "an empty checkpoint": (write("checkpoint.fsz", lambda b: b""), rf"checkpoint cannot be read.*{DELETE}"),
    "a cut checkpoint": (write("checkpoint.fsz", lambda b: b[:-100]), rf"checkpoint cannot be read.*{DELETE}"),
    "a flipped bit": (write("checkpoint.fsz", lambda b: b[:99] + bytes([b[99] ^ 1]) + b[100:]), DELETE),
    "a foreign file": (write("checkpoint.fsz", lambda b: b"PK\x03\x04" * 99), rf"checkpoint cannot be read.*{DELETE}"),
    "a model for a checkpoint": (a_model, rf"not the state of a run.*{DELETE}"),
    "another run's checkpoint": (of_another_run, rf"another configuration: lr 0\.5 is now 0\.1; rounds 4.*{DELETE}"),
    "another network's checkpoint": (of_another_network, rf"of another network.*{DELETE}"),
    "a checkpoint of a later round": (of_a_later_round, rf"it is of round 9, and the run has 6.*{DELETE}"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_says_how_to_go_on(whole, tmp_path, name):
    damage, says = DAMAGE[name]
    shutil.copytree(whole, tmp_path / "run")
    damage(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(RunError, match=f"(?s){says}"):
        run(CONFIG, tmp_path / "run", resume=True)
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert after == before | {"partition.json": after["partition.json"]}


def test_going_on_as_the_message_says(whole, tmp_path):
    result = run(CONFIG)
    shutil.copytree(whole, tmp_path / "begun again")
    for name in ("checkpoint.fsz", "history.jsonl"):
        (tmp_path / "begun again" / name).unlink()
    shutil.copytree(whole, tmp_path / "without config")
    (tmp_path / "without config" / "config.toml").unlink()
    with pytest.raises(RunError, match=r"checkpoint.fsz is of a run of another configuration: lr 0\.1 is now 0\.5"):
        run(replace(CONFIG, lr=0.5), tmp_path / "without config", resume=True)
    with pytest.raises(RunError, match=r"already holds a run \(history\.jsonl\)"):
        run(CONFIG, tmp_path / "without config")
    for folder in ("begun again", "without config"):
        assert run(CONFIG, tmp_path / folder, resume=True).model.same_as(result.model)
        assert (tmp_path / folder / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again_and_says_so(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "checkpoint.fsz").unlink()
    (tmp_path / "run" / "history.jsonl").write_text("".join(lines(whole)[:2]))
    with pytest.warns(UserWarning, match="has no checkpoint yet: the run begins at its first round"):
        run(CONFIG, tmp_path / "run", resume=True)
    assert [entry.round for entry in read_history(tmp_path / "run" / "history.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_what_a_killed_process_left_half_written_is_removed(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / ".checkpoint.fsz.123-0a0b0c0d.partial").write_bytes(b"half")
    run(CONFIG, tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob(".*"))
    assert json.loads((tmp_path / "run" / "partition.json").read_text())
