"""Flower's processes, started and watched: a SuperLink with one run of our app, and a SuperNode that comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ...errors import ClientError, RunError
from ...stopping import uninterrupted
from ..ledger import Entry, read_history
from .commands import Link, environment_variables, shown
from .log_lines import Tail, passed_on
from .registration import Registration

if TYPE_CHECKING:
    from ..folder import RunFolder

STOPPED = "fedsparsify stopped: "  # a line of the ServerApp's log: what follows is meant for the user
PAUSE_SECONDS = 10.0
START_SECONDS = 60.0


@contextmanager
def running(
    command: Sequence[str], env: Mapping[str, str], log: Path, stdin: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own process group; the group is stopped when the block ends."""
    with log.open("ab") as file:
        process = start(command, env, file, stdin)
    try:
        yield process
    finally:
        stop(process)
        if process.stdin:
            process.stdin.close()


def start(
    command: Sequence[str], env: Mapping[str, str], log: IO[bytes] | int | None = None, stdin: int | None = None
) -> subprocess.Popen[bytes]:
    """Start one of Flower's commands in its own process group: Ctrl-C reaches this process only."""
    errors = subprocess.STDOUT if log == subprocess.PIPE else log
    try:
        return subprocess.Popen(command, env=env, stdin=stdin, stdout=log, stderr=errors, start_new_session=True)
    except FileNotFoundError:
        raise RunError(f"there is no {command[0]}: pip install 'fedsparsify[flower]'") from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: by SIGTERM, and after ten seconds by SIGKILL."""
    with uninterrupted():
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)


class Server:
    """A SuperLink, the proxy in front of it and the runs of our app, for as long as the block lasts."""

    _superlink: subprocess.Popen[bytes]
    _proxy: subprocess.Popen[bytes] | None = None
    _registration: Registration | None = None

    def __init__(
        self,
        link: Link,
        show: Callable[[str], None],
        say: Callable[[str], None] | None = None,
        pass_on: Callable[[str, str], None] = lambda level, line: None,
    ) -> None:
        self._link, self._show, self._say = link, show, say or show  # show: a command that is about to run
        self._pass_on = pass_on  # a warning of the ServerApp
        self._env = environment_variables(link.home)
        self.log = link.home / "superlink.log"
        self.proxy_log = link.home / "proxy.log"
        self._shown = -1  # the last round that was shown
        self._stopped = False  # whether the run stopped early after it

    @contextmanager
    def open(self) -> Iterator[Server]:
        """Start the SuperLink, register the nodes' keys, and start the proxy."""
        link = self._link
        link.write_connection()
        if not link.simulated:
            _check_free(link.public_address, "--port")
        _check_free(link.address, "--superlink-port")
        self._say("Starting Flower's server.")
        self._show(shown(link.superlink()))
        with running(link.superlink(), self._env, self.log) as self._superlink:
            _await(self._superlink, link.address, "SuperLink", self.log)
            if link.keys:
                self._registration = Registration(link.keys.folder, link.address, link.certificates / "ca.crt")
                for line in self._registration.update():
                    self._say(line)
            if link.simulated:
                yield self
                return
            self._show(shown(link.proxy()))
            # The pipe ends with this process, however it ends; the proxy and the SuperLink end with the pipe.
            command = [*link.proxy(), "--end-group", str(self._superlink.pid)]
            with running(command, self._env, self.proxy_log, subprocess.PIPE) as self._proxy:
                _await(self._proxy, link.public_address, "proxy", self.proxy_log)
                yield self

    def processes(self) -> dict[str, bool]:
        """Which of the processes that must be there run."""
        found = {"superlink": self._superlink, "proxy": self._proxy}
        return {name: process.poll() is None for name, process in found.items() if process}

    def run_app(self, app: Path, folder: RunFolder, rounds: int, show: Callable[[Entry], None]) -> bool:
        """Run the app and show every round as it ends. Returns whether the run got to its end.

        An error that the run raised on purpose is raised here; of a run that was killed, there is none.
        """
        command, alive = self._link.run(app), True
        self._say("Starting the run. It takes some seconds until clients can join.")
        self._show(shown(command))
        log = self._link.home / "run.log"
        log.unlink(missing_ok=True)
        tail = Tail(log)
        with running(command, self._env, log) as process:
            while alive:
                alive = process.poll() is None  # before the history is read, so that the last read sees every round
                for entry in read_history(folder.history) if folder.history.exists() else []:
                    if entry.round > self._shown:
                        show(entry)
                        self._shown, self._stopped = entry.round, bool(entry.stopped)
                for level, line in tail:  # a round's own lines are in the history
                    if not line.startswith("round ") or " is repeated: " in line:
                        self._pass_on(level, line)
                for line in self._registration.follow() if self._registration else []:
                    self._say(line)
                if self._proxy and self._proxy.poll() is not None:
                    words = _last_words(self.proxy_log)
                    raise RunError(f"the proxy is gone, and nodes cannot reach the server: {words}  ({self.proxy_log})")
                if alive:
                    time.sleep(0.5)
        if folder.model.exists() and (self._shown == rounds or self._stopped):
            return True
        if self._superlink.poll() is not None:
            raise RunError(f"the SuperLink is gone: {_last_words(self.log)}  ({self.log})")
        words = log.read_text(errors="replace")
        if STOPPED in words:
            raise ClientError(words.rpartition(STOPPED)[2].splitlines()[0].partition(": ")[2])
        if "Successfully started run" not in words:
            raise RunError(f"the run did not start: {_last_words(log)}  ({log})")
        return False


def stay(
    command: Sequence[str],
    home: Path,
    tries: int,
    say: Callable[[str], None],
    check: Callable[[], None],
    pass_on: Callable[[str, str], None] | None = None,
    started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> int:
    """Run a SuperNode, and start it again whenever it ends with an error, at most `tries` times (0: without limit).

    For a minute after a node was lost, a SuperLink refuses to take it back: that is such an error. `check` raises what
    will not mend by itself, before the first start and after every end. With `pass_on`, every line that the SuperNode
    writes goes there, with its level. `started` is told of every start.
    """
    env, left = environment_variables(home), tries
    while True:
        check()
        process = start(command, env, subprocess.PIPE if pass_on else None)
        started(process)
        reader = threading.Thread(target=passed_on, args=(process.stdout or (), pass_on), daemon=True)
        reader.start()
        try:
            status = process.wait()
        finally:
            stop(process)
            reader.join(2)
            if process.stdout:
                process.stdout.close()
        left -= 1
        if status == 0 or left == 0:
            check()
            return status
        say(f"The SuperNode left with status {status}; it is started again in {PAUSE_SECONDS:g} s.")
        time.sleep(PAUSE_SECONDS)


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_free(address: str, flag: str) -> None:
    if _listens(address):
        raise RunError(f"something listens at {address} already. Stop it, or choose another {flag}.")


def _await(process: subprocess.Popen[bytes], address: str, name: str, log: Path) -> None:
    """Wait until a process that was just started listens."""
    until = time.monotonic() + START_SECONDS
    while not _listens(address):
        if process.poll() is not None or time.monotonic() > until:
            raise RunError(f"the {name} did not start: {_last_words(log)}  ({log})")
        time.sleep(0.1)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 1):
            return True
    except OSError:
        return False


def _last_words(log: Path) -> str:
    """The end of a log on one line, without its colours."""
    text = re.sub(r"\x1b\[\d*m", "", log.read_text(errors="replace"))
    return " | ".join(line.strip() for line in text.splitlines()[-3:])[-300:]
