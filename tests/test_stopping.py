"""Signals once, twice and three times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsparsify import RunConfig, run, stopping
from fedsparsify.federation import run as run_module
from fedsparsify.federation.checkpoint import Checkpoint
from fedsparsify.federation.ledger import read_history
from fedsparsify.stopping import ALREADY_STOPPING, ending, listening, uninterrupted

NOTED = ALREADY_STOPPING.decode()


@pytest.fixture(autouse=True)
def own_handlers():
    """Leave this process's handlers as they were."""
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under nohup ignores it
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers):
    for number in numbers:
        signal.raise_signal(number)


@pytest.mark.parametrize("second", stopping.SIGNALS)
@pytest.mark.parametrize("first", stopping.SIGNALS)
def test_the_first_raises_and_the_next_is_answered_by_a_line(capfd, monkeypatch, first, second):
    stopping.listen()
    assert not stopping.under_way()
    with pytest.raises(KeyboardInterrupt):
        send(first)
    assert capfd.readouterr().err == ""
    send(second, first)
    assert capfd.readouterr().err == NOTED * 2
    assert stopping.under_way()
    monkeypatch.setattr(stopping, "GRACE_SECONDS", 0.0)  # later: the first may have got lost
    with pytest.raises(KeyboardInterrupt):
        send(second)


def test_a_closed_terminal_stops_nothing_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stopping.listen()
    with uninterrupted():
        send(signal.SIGHUP)
    with ending():
        send(signal.SIGHUP)
    send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_write_is_not_interrupted(number):
    stopping.listen()
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            send(number, number)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    assert signal.getsignal(number) is stopping._raise_once


def test_what_ends_is_not_interrupted(capfd):
    stopping.listen()
    with ending():
        send(signal.SIGINT, signal.SIGTERM)
    assert capfd.readouterr().err == NOTED * 2


def test_a_script_has_its_handlers_back():
    own = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), listening():
        try:
            send(signal.SIGINT)
        finally:
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with uninterrupted():
        send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGINT, print)
    with listening():
        assert signal.getsignal(signal.SIGINT) is print  # somebody else's
    signal.signal(signal.SIGTERM, own)


def whole(folder):
    """Nothing half-written or locked is left, and the checkpoint is of the last round."""
    assert not [path.name for path in folder.rglob(".*")]
    assert Checkpoint.load(folder / "checkpoint.fsz").round == read_history(folder / "history.jsonl")[-1].round


@pytest.mark.parametrize("every", [1, 50])
def test_a_second_signal_does_not_break_up_the_last_checkpoint(tmp_path, monkeypatch, every):
    config = RunConfig(rounds=4, epochs=1, clients=2, checkpoint_every=every)
    expected = run(config).model
    save, sent = Checkpoint.save, []

    def interrupted(self, path):
        if self.round == 2:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
            time.sleep(0.05)
        save(self, path)

    def stop(entry):
        if entry.round == 2:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(Checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", on_round=stop)
    assert sent
    whole(tmp_path / "run")
    assert run(config, tmp_path / "run", resume=True).model.same_as(expected)


WORDS = ("run", "--rounds", "2", "--epochs", "1", "--clients", "2", "--out", "o")


def test_the_command_stopped_at_its_beginning_and_at_its_end(here, monkeypatch):
    def stop(*_, **__):
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGINT, signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "load_for", stop)
        code, out, errors = here(*WORDS)
        assert (code, out, errors.count("Stopped.")) == (130, "", 1)
        assert not Path("o").exists()
    with monkeypatch.context() as patch:
        patch.setattr(run_module.Simulated, "initial", stop)
        code, out, _ = here(*WORDS)
        assert code == 130
        assert "Stopped after round 0. Nothing is lost; go on with:\n  fedsparsify run --out o --resume" in out
        assert not list(Path("o").glob(".*"))
    with monkeypatch.context() as patch:
        patch.setattr("fedsparsify.report.write_report", stop)
        code, out, _ = here(*WORDS, "--resume")
        assert code == 130
        assert "Stopped while the report was written. Nothing is lost; go on with:" in out
        whole(Path("o"))


SLOW_PHASE = """
import sys, time
from pathlib import Path
import {module} as module
def wait(*_, **__):
    Path("reached").touch()
    time.sleep(60)
module.{name} = wait
from fedsparsify.__main__ import main
main()
"""
PHASES = {
    "data": ("fedsparsify.federation.run", "load_for"),
    "set-up": ("fedsparsify.federation.run", "Simulated"),
    "first round": ("fedsparsify.federation.run", "run_rounds"),
    "model": ("fedsparsify.federation.journal", "facts"),
    "page": ("fedsparsify.report.run_report", "write_page"),
    "figures": ("fedsparsify.report.figures", "draw_curves"),
}
SIGNALS = {
    "once": [signal.SIGINT],
    "twice": [signal.SIGINT, signal.SIGINT],
    "SIGTERM and Ctrl-C": [signal.SIGTERM, signal.SIGINT, signal.SIGINT],
    "hang-up": [signal.SIGHUP],
}


def stopped(process, numbers):
    """What a process said that was sent these signals, one after the other."""
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.02)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return out + errors


@pytest.mark.slow
@pytest.mark.parametrize("numbers", SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_real_command_stopped_in_any_phase(elsewhere, phase, numbers):
    module, name = PHASES[phase]
    code = SLOW_PHASE.format(module=module, name=name)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *WORDS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not Path("reached").exists():
        assert process.poll() is None
        time.sleep(0.01)
    assert "Stopped" in stopped(process, numbers)
    assert not [path for path in elsewhere.rglob(".*") if path.suffix == ".partial" or path.name == ".lock"]


@pytest.mark.slow
@pytest.mark.parametrize("numbers", SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize("command", ["serve", "join"])
def test_a_real_server_and_a_real_client_stopped(elsewhere, command, numbers):
    pytest.importorskip("flwr")
    from fedsparsify.federation.flower.processes import free_port

    Path("r.toml").write_text("rounds = 3\nclients = 2\n")
    port = str(free_port())
    words = {
        "serve": ("serve", "r.toml", "--insecure", "--out", "o", "--host", "127.0.0.1", "--port", port),
        "join": ("join", "--insecure", "--superlink", f"127.0.0.1:{port}", "--folder", "o"),
    }[command]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "fedsparsify", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert any("$ flower-super" in line for line in iter(process.stdout.readline, ""))
    time.sleep(2)
    stopped(process, numbers)
    assert not [path for path in elsewhere.rglob(".*") if path.suffix == ".partial" or path.name == ".lock"]
    asked = f"127.0.0.1:{port}"
    commands = [path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [words for words in commands if asked in words]
