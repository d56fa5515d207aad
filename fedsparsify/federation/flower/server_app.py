"""What a SuperLink runs for our app: the rounds of a run, written down in its folder as a simulation's are."""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...data import load_dataset
from ...errors import FedSparsifyError
from ...options import read_settings, settings
from ..folder import RunFolder
from ..journal import Journal, Result
from ..ledger import Entry
from ..lock import held
from .processes import STOPPED
from .serve_settings import ServeSettings
from .server import Networked, persistent
from .task import Task

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`
ENDING_SECONDS = 30.0  # in which a ServerApp that was told to end gives the folder back to its successor
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the run that the Flower run's settings describe."""
    try:
        run_over_grid(grid, context.run_config)
    except FedSparsifyError as error:
        LOG.error("%s%s: %s", STOPPED, type(error).__name__, error)
        raise


def run_over_grid(grid: Grid, found: Mapping[str, object]) -> Result:
    """Play a run over a grid, from its start or, with `resume`, from where its folder ends."""
    task = Task.read(found)
    given = {name: found[name] for name in settings(ServeSettings) if name in found}
    waiting = ServeSettings(**read_settings(ServeSettings, given, "serve"))
    config, dataset = task.config, load_dataset(task.config.data)
    folder = RunFolder(Path(str(found["out"])))
    with held(folder.path, ENDING_SECONDS):
        journal = Journal(config, folder, resume=bool(found.get("resume", False)))
        federation = Networked(config, dataset, grid, journal.known_masks, waiting)
        model, first = journal.start(federation.initial)
        rounds = persistent(federation, config, model, first, waiting.retries)
        model = journal.keep(rounds, model, federation.velocities, report)
        return journal.finish(model, dataset, federation.graph_of(model))


def report(entry: Entry) -> None:
    """A round in Flower's log."""
    how = f"accuracy {entry.accuracy:.4f}, sparsity {entry.sparsity:.4f}, {entry.clients} clients"
    LOG.info("round %d: %s, %.1f s", entry.round, how, entry.seconds)
    if entry.empty:
        LOG.warning("round %d: no weight is left in %s", entry.round, ", ".join(entry.empty))
    for client, reason in entry.refused.items():
        LOG.warning("round %d: %s was left out: %s", entry.round, client, reason)
