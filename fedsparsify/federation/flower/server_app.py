"""What a SuperLink runs for our app: the rounds of a run, written down in its folder as a simulation's are."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import IO

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...data import load_dataset
from ...errors import FedSparsifyError, RunError
from ...options import read_settings, settings
from ..ledger import Entry
from ..run import Journal, Result, RunFolder
from .patience import Patience
from .processes import STOPPED
from .server import Networked, persistent
from .task import Task

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the run that the Flower run's settings describe."""
    try:
        play_over(grid, context.run_config)
    except FedSparsifyError as error:
        LOG.error("%s%s: %s", STOPPED, type(error).__name__, error)
        raise


def play_over(grid: Grid, found: Mapping[str, object]) -> Result:
    """Play a run over a grid, from its start or, with `resume`, from where its folder ends."""
    task = Task.read(found)
    given = {name: found[name] for name in settings(Patience) if name in found}
    patience = Patience(**read_settings(Patience, given, "serve"))
    config, dataset = task.config, load_dataset(task.config.data)
    folder = RunFolder(Path(str(found["out"])))
    with alone(folder.path):
        journal = Journal(config, folder, resume=bool(found.get("resume", False)))
        federation = Networked(config, dataset, grid, journal.memory, patience)
        model, first = journal.start(federation.initial)
        rounds = persistent(federation, config, model, first, patience.retries)
        model = journal.keep(rounds, model, federation.velocities, report)
        journal.finish(model, dataset, federation.graph_of(model))
    return Result(model, journal.ledger.entries)


@contextmanager
def alone(folder: Path, patience: float = 30.0) -> Iterator[None]:
    """Hold a folder for this process: a ServerApp that was thought dead must not write beside its successor.

    One that was told to end takes a few seconds.
    """
    until = time.monotonic() + patience
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from error
    with file:
        while not _locked(file):
            if time.monotonic() > until:
                raise RunError(f"another process plays the run in {folder}. End it first.")
            time.sleep(0.2)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def report(entry: Entry) -> None:
    """A round in Flower's log."""
    how = f"accuracy {entry.accuracy:.4f}, sparsity {entry.sparsity:.4f}, {entry.clients} clients"
    LOG.info("round %d: %s, %.1f s", entry.round, how, entry.seconds)
    if entry.empty:
        LOG.warning("round %d: no weight is left in %s", entry.round, ", ".join(entry.empty))
    for client, reason in entry.refused.items():
        LOG.warning("round %d: %s was left out: %s", entry.round, client, reason)
