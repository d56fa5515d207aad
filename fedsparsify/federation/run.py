"""One simulated run from its config to its files: resumable, with the same bytes whenever it was stopped.

In: a `RunConfig` and, where files are wanted, a folder. Out: a `Result`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ..aggregation.privacy import settled_noise
from ..config import CLIENTS, RunConfig
from ..data import Dataset, holdings
from ..errors import ConfigError
from ..state import under
from ..stopping import listening
from ..wire.files import atomic
from .early_stopping import check_patience, until_stopped
from .environment import Environment
from .folder import RunFolder
from .journal import Journal, Result
from .ledger import Entry
from .lock import held
from .prepared import load_for, prepared
from .rounds import run_rounds
from .simulated import Simulated
from .wired import Wired

__all__ = ["Result", "RunFolder", "run"]


def run(
    config: RunConfig,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Entry], None] | None = None,
    dataset: Dataset | None = None,
    environment: Environment | None = None,
) -> Result:
    """Simulate a federated run.

    Args:
        config: what to run.
        out: the folder for the run's files; None: write no files.
        resume: continue the run in `out` after its last checkpoint.
        on_round: is called with the entry of each finished round.
        dataset: the data set, if it is loaded already.
        environment: samples on their device and a back end, which runs with the same settings of training share.

    Returns:
        The last model, with one entry per round.

    Raises:
        ConfigError: if the run cannot be made as asked.
        DataError: if the data set is absent or cannot be divided as asked.
        RunError: if `out` holds another run, or cannot be written.
        ClientError: if fewer than `min_clients` clients returned a usable update.

    Example:
        >>> from fedsparsify import RunConfig, run
        >>> result = run(RunConfig(rounds=2, epochs=1, clients=2, sparsity=0.9), on_round=lambda entry: None)
        >>> round(result.model.sparsity, 2)
        0.9
    """
    folder = RunFolder(Path(out)) if out is not None else None
    if config.data == CLIENTS and dataset is None:
        raise ConfigError(f'data "{CLIENTS}" is for `fedsparsify serve`: a simulation needs a data set.')
    with listening():
        dataset = prepared(config, dataset) if dataset else load_for(config)
        federation = Simulated(config, dataset, environment)
        _ = federation.environment.graph  # a network without one is named now, not after the last round
        with held(folder.path) if folder else nullcontext():
            return _run(config, folder, resume, on_round, dataset, federation)


def _run(
    config: RunConfig,
    folder: RunFolder | None,
    resume: bool,
    on_round: Callable[[Entry], None] | None,
    dataset: Dataset,
    federation: Simulated,
) -> Result:
    """Run in a folder that this process holds."""
    config = settled(config, federation.measure_times, folder)
    journal = Journal(config, folder, resume)
    check_patience(config)
    if folder:
        with atomic(folder.partition) as file:
            file.write(json.dumps(holdings(dataset.y_train, federation.parts, dataset.classes).tolist()).encode())
    federation.kept.update(journal.clients)
    carrier = Wired(federation, config.wire_precision, journal.known_masks) if config.wire else federation
    model, first = journal.start(federation.initial)
    model = federation.place(model)
    probe = federation.probe if config.diagnose else None
    rounds = run_rounds(
        carrier,
        config.method,
        model,
        first,
        config.rounds,
        config.seed,
        config.min_clients,
        probe,
        under(journal.server, model),
        config.clients,
        journal.aggregator(),
    )
    rounds = until_stopped(rounds, config, journal.ledger.entries)
    model = journal.keep(rounds, model, federation.kept, on_round)
    return journal.finish(model, dataset, federation.graph_of(model))


def settled(config: RunConfig, measure: Callable[[], str], folder: RunFolder | None) -> RunConfig:
    """The config with its machine-dependent settings replaced by measured values: a resumed run keeps its own."""

    def times() -> str:
        if folder and folder.config.exists():
            return str(getattr(folder.saved_config(config).method, "times", "uniform"))
        return measure()

    method = config.method.settled(times)
    return with_noise(config if method is config.method else replace(config, method=method))


def with_noise(config: RunConfig) -> RunConfig:
    """The config of a private run with the noise that its ε needs."""
    if not config.private:
        return config
    return replace(config, dp_noise=settled_noise(config, config.participation, config.rounds))
