"""The ServerApp that a SuperLink runs for `fedsparsify serve`.

In: the settings of a Flower run. Out: the same run folder that a simulation leaves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from logging import getLogger
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ...aggregation import Aggregator
from ...config import RunConfig
from ...errors import FedSparsifyError
from ...model import SparseModel
from ...options import read_settings, settings
from ...state import State, under
from ..early_stopping import until_stopped
from ..folder import RunFolder
from ..journal import Journal, Result
from ..ledger import Entry
from ..lock import held
from ..rounds import Played, TooFewAnswers, run_rounds
from .processes import STOPPED
from .serve_settings import ServeSettings
from .server import Networked
from .server_data import server_dataset
from .task import Task

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`
ENDING_SECONDS = 30.0  # within which a ServerApp that was told to end releases its folder
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the Flower run's settings describe."""
    try:
        run_over_grid(grid, context.run_config)
    except FedSparsifyError as error:
        LOG.error("%s%s: %s", STOPPED, type(error).__name__, error)
        raise


def run_over_grid(grid: Grid, found: Mapping[str, object]) -> Result:
    """Run over a grid, from the start or, with `resume`, from where the folder ends."""
    task = Task.read(found)
    given = {name: found[name] for name in settings(ServeSettings) if name in found}
    waiting = ServeSettings(**read_settings(ServeSettings, given, "serve"))
    config, dataset = task.config, server_dataset(task.config)
    folder = RunFolder(Path(str(found["out"])))
    with held(folder.path, ENDING_SECONDS):
        journal = Journal(config, folder, resume=bool(found.get("resume", False)))
        nodes = int(str(found.get("nodes", config.clients)))  # that the server admits
        federation = Networked(config, dataset, grid, journal.known_masks, waiting, nodes)
        model, first = journal.start(federation.initial)
        state = under(journal.server, model)
        rounds = rounds_with_retries(federation, config, model, first, waiting, state, journal.aggregator())
        rounds = until_stopped(rounds, config, journal.ledger.entries)
        model = journal.keep(rounds, model, federation.kept, log_round)
        return journal.finish(model, dataset, federation.graph_of(model))


def log_round(entry: Entry) -> None:
    """A round in Flower's log."""
    how = f"{entry.shown()}, sparsity {entry.sparsity:.4f}, {entry.clients} clients"
    how += "" if entry.epsilon is None else f", ε {entry.epsilon:.4g}"
    LOG.info("round %d: %s, %.1f s", entry.round, how, entry.seconds)
    if entry.empty:
        LOG.warning("round %d: no weight is left in %s", entry.round, ", ".join(entry.empty))
    for client, reason in entry.bounded.items():
        LOG.warning("round %d: %s was bounded: %s", entry.round, client, reason)
    for client, reason in entry.refused.items():
        LOG.warning("round %d: %s was left out: %s", entry.round, client, reason)


def rounds_with_retries(
    federation: Networked,
    config: RunConfig,
    model: SparseModel,
    first: int,
    waiting: ServeSettings,
    state: State,
    aggregator: Aggregator,
) -> Iterator[Played]:
    """The rounds from `first` on. One with too few answers is repeated; after `retries` the run stops, resumable.

    While clients that it wanted are away or late, it is repeated until `wait` seconds are over: they may come.
    """
    left, until = waiting.retries, float("inf")
    while first <= config.rounds:
        rounds = run_rounds(
            federation,
            config.method,
            model,
            first,
            config.rounds,
            config.seed,
            config.min_clients,
            state=state,
            clients=config.clients,
            aggregator=aggregator,
        )
        try:
            for model, entry, state in rounds:
                first, left, until = entry.round + 1, waiting.retries, float("inf")
                yield Played(model, federation.with_network_facts(entry), state)
        except TooFewAnswers as error:
            federation.leave_out(error.refused)
            told = TooFewAnswers(first, error.usable, error.least, error.refused | federation.refused)
            until = min(until, time.monotonic() + waiting.wait)
            if left <= 0 and not (federation.absent and time.monotonic() < until):
                raise told from None
            left -= 1
            LOG.warning("round %d is repeated: %s", first, told)
