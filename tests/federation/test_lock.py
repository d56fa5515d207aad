"""One process per folder."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys

import pytest

from fedsparsify import RunConfig, run
from fedsparsify.errors import RunError
from fedsparsify.federation import lock
from fedsparsify.federation.lock import held
from fedsparsify.federation.sweep import expand, sweep

SMALL = {"rounds": 2, "epochs": 1, "clients": 2}


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    who = rf"in use by process {os.getpid()} on {re.escape(socket.gethostname())}, since 20\d\d-.*wait.*--out"
    with held(tmp_path / "a" / "b"):
        with pytest.raises(RunError, match=who), held(tmp_path / "a" / "b", wait_seconds=0.01):
            pass
        with held(tmp_path / "a"):
            pass
    with held(tmp_path / "a" / "b"):
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_holder_that_is_killed_holds_nothing(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fedsparsify.federation.lock import held\n"
        "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=f"process {process.pid} on"), held(tmp_path):
        pass
    process.kill()
    process.communicate()
    with held(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / lock.NAME).read_text()


def test_a_file_that_the_holder_removes_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    real, opened = os.open, []

    def removed_meanwhile(path, *rest):
        opened.append(real(path, *rest))
        if len(opened) == 1:
            os.unlink(path)
        return opened[-1]

    monkeypatch.setattr(lock.os, "open", removed_meanwhile)
    with held(tmp_path):
        monkeypatch.undo()
        with pytest.raises(RunError, match="in use"), held(tmp_path):
            pass


@pytest.mark.parametrize("plant", ["symlink", "hard link", "directory"])
def test_nothing_planted_is_written_to(tmp_path, plant):
    folder, precious = tmp_path / "run", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("precious")
    if plant == "symlink":
        (folder / lock.NAME).symlink_to(precious)
    elif plant == "hard link":
        os.link(precious, folder / lock.NAME)
    else:
        (folder / lock.NAME).mkdir()
    with pytest.raises(RunError, match=r"\.lock must be a plain file of ours, and is not: remove it"), held(folder):
        pass
    assert precious.read_text() == "precious"


def test_what_another_wrote_into_the_lock_reaches_no_screen(tmp_path):
    with held(tmp_path):
        (tmp_path / lock.NAME).write_text("process 1 on \x1b[31mred since 2026\n")
        with pytest.raises(RunError, match="in use by another process"), held(tmp_path):
            pass


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ("flock", errno.ENOLCK, "its file system has no locks. Choose an --out on a local disk"),
        ("flock", errno.EOPNOTSUPP, "its file system has no locks"),
        ("flock", errno.EIO, "cannot be locked against other processes: Input/output error"),
        ("open", errno.EROFS, "cannot be written to: Read-only file system. Make it writable"),
        ("open", errno.EACCES, "cannot be written to: Permission denied"),
    ],
)
def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch, call, error, says):
    def fail(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(lock.fcntl if call == "flock" else lock.os, call, fail)
    with pytest.raises(RunError, match=says), held(tmp_path):
        pass


def test_a_system_without_locks_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    with pytest.warns(UserWarning, match="is not locked on this system"), held(tmp_path):
        pass


def test_a_run_and_a_sweep_hold_their_folders(tmp_path):
    """Played from inside itself, as a second process would."""
    tried = []

    def again(entry):
        with pytest.raises(RunError, match="in use"):
            run(RunConfig(**SMALL), tmp_path / "run", resume=True)
        tried.append("run")

    run(RunConfig(**SMALL), tmp_path / "run", on_round=again)
    runs = expand(SMALL | {"sweep": {"seed": [1, 2]}})

    def both(planned, entry):
        with pytest.raises(RunError, match="in use"):
            sweep(runs, tmp_path / "sweep")
        with pytest.raises(RunError, match="in use"):
            run(planned.config, tmp_path / "sweep" / planned.name, resume=True)
        tried.append("sweep")

    sweep(runs, tmp_path / "sweep", on_round=both)
    assert tried == ["run"] * 2 + ["sweep"] * 4
    assert not list(tmp_path.rglob(lock.NAME))


def test_the_commands_say_who_holds_a_folder(elsewhere, here):
    (elsewhere / "r.toml").write_text("rounds = 2\nclients = 2\n[sweep]\nseed = [1]\n")
    (elsewhere / "s.toml").write_text("rounds = 2\nclients = 2\n")
    for folder, words in (
        ("run", ["run", "--rounds", 2, "--out", "run"]),
        ("sweep", ["sweep", "r.toml", "--out", "sweep"]),
        ("serve/flower", ["serve", "s.toml", "--insecure", "--out", "serve"]),
    ):
        with held(elsewhere / folder):
            code, _, errors = here(*words)
        assert code == 2
        assert f"RunError: {folder} is in use by process {os.getpid()} on " in errors.replace(f"{elsewhere}/", "")
