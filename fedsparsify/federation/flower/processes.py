"""Flower's processes, started and watched: a SuperLink with one run of our app, and a SuperNode that comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ...errors import ClientError, RunError
from ...stopping import uninterrupted
from ..ledger import Entry, read_history
from .commands import Link, environment, shown

if TYPE_CHECKING:
    from ..run import RunFolder

STOPPED = "fedsparsify stopped: "  # a line of the ServerApp's log: what follows is meant for the user
PAUSE_SECONDS = 10.0
SUPERLINK_SECONDS = 60.0


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own group, stopped with all that it started when the block ends."""
    with log.open("ab") as file:
        process = start(command, env, file)
    try:
        yield process
    finally:
        stop(process)


def start(command: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """One of Flower's commands, in a group of its own: Ctrl-C is for us to handle."""
    try:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    except FileNotFoundError:
        raise RunError(f"there is no {command[0]}: pip install 'fedsparsify[flower]'") from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and all that it started to end; after a while, insist."""
    with uninterrupted():
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)


class Server:
    """A SuperLink and the runs of our app on it, for as long as the block lasts."""

    _process: subprocess.Popen[bytes]

    def __init__(self, link: Link, say: Callable[[str], None]) -> None:
        self._link, self._say = link, say
        self._env = environment(link.home)
        self.log = link.home / "superlink.log"
        self._shown = -1  # the last round that was shown

    @contextmanager
    def open(self) -> Iterator[Server]:
        """Start the SuperLink and admit the nodes."""
        link = self._link
        link.write_connection()
        if _listens(link.address):
            raise RunError(f"something listens at {link.address} already. Stop it, or choose another --port.")
        self._say(shown(link.superlink()))
        with running(link.superlink(), self._env, self.log) as process:
            until = time.monotonic() + SUPERLINK_SECONDS
            while not _listens(link.address):
                if process.poll() is not None or time.monotonic() > until:
                    raise RunError(f"the SuperLink did not start: {_last_words(self.log)}  ({self.log})")
                time.sleep(0.1)
            for command in link.register():
                self._say(shown(command))
                done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
                words = f"{done.stdout} {done.stderr}"
                if done.returncode and "already" not in words:
                    raise RunError(f"the SuperLink does not take {command[3]}: {' '.join(words.split())[-300:]}")
            self._process = process
            yield self

    def play(self, app: Path, folder: RunFolder, rounds: int, show: Callable[[Entry], None]) -> bool:
        """Run the app and show every round as it ends; whether the run got to its end.

        An error that the run raised on purpose is raised here; a run that was killed just ends.
        """
        command, alive = self._link.run(app), True
        self._say(shown(command))
        log = self._link.home / "run.log"
        log.unlink(missing_ok=True)
        with running(command, self._env, log) as process:
            while alive:
                alive = process.poll() is None  # before looking, so that the last look sees everything
                for entry in read_history(folder.history) if folder.history.exists() else []:
                    if entry.round > self._shown:
                        show(entry)
                        self._shown = entry.round
                if alive:
                    time.sleep(0.5)
        if folder.model.exists() and self._shown == rounds:
            return True
        if self._process.poll() is not None:
            raise RunError(f"the SuperLink is gone: {_last_words(self.log)}  ({self.log})")
        words = log.read_text(errors="replace")
        if STOPPED in words:
            raise ClientError(words.rpartition(STOPPED)[2].splitlines()[0].partition(": ")[2])
        if "Successfully started run" not in words:
            raise RunError(f"the run did not start: {_last_words(log)}  ({log})")
        return False


def stay(command: Sequence[str], home: Path, tries: int, say: Callable[[str], None]) -> int:
    """Run a SuperNode, and start it again whenever it leaves with an error; 0 tries are as many as it takes.

    A SuperLink does not take a node back before it has missed its old self for a minute: that is such an error.
    """
    env, left = environment(home), tries
    while True:
        process = start(command, env)
        try:
            status = process.wait()
        finally:
            stop(process)
        left -= 1
        if status == 0 or left == 0:
            return status
        say(f"The SuperNode left with status {status}; it is started again in {PAUSE_SECONDS:g} s.")
        time.sleep(PAUSE_SECONDS)


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0


def _last_words(log: Path) -> str:
    """The end of a log on one line, without its colours."""
    text = re.sub(r"\x1b\[\d*m", "", log.read_text(errors="replace"))
    return " | ".join(line.strip() for line in text.splitlines()[-3:])[-300:]
