"""What a run writes, in a simulation and over a network alike.

In: the rounds as they end. Out: one line of history and, as often as the config says, one checkpoint per round; the
model's file at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..aggregation import Aggregator
from ..aggregation.privacy import Privacy
from ..aggregation.releases import Releases
from ..config import RunConfig, to_toml
from ..data import Dataset
from ..errors import RunError
from ..model import SparseModel
from ..notices import notice
from ..state import State
from ..stopping import ending, uninterrupted
from ..wire.artefact import save
from .checkpoint import Checkpoint, anew
from .folder import RunFolder
from .known_masks import KnownMasks
from .ledger import Entry, Ledger, read_history
from .rounds import Played


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Args:
        model: the model of the last round.
        history: one entry per round.
        facts: what the model's file says beside the weights: graph, classes, preprocessing, how it was trained.

    Example:
        >>> from fedsparsify import RunConfig, run
        >>> result = run(RunConfig(rounds=1, epochs=1, clients=2, method="fedavg"))
        >>> result.model.sparsity, len(result.history)
        (0.0, 1)
        >>> result.save("model.fsz")
    """

    model: SparseModel
    history: list[Entry]
    facts: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else None
        ended = f"{last.shown()} after round {last.round}" if last else "no round"
        return f"Result({ended}, {self.model!r})"

    @property
    def stopped(self) -> str:
        """Why the run stopped before its last round; empty: it did not."""
        return self.history[-1].stopped if self.history else ""

    def save(self, path: str | Path) -> None:
        """Write the file that `run` leaves as `model.fsz`: the model, its network's graph and how it was trained.

        `fedsparsify.Engine(path)` runs it, and `fedsparsify export` converts it.

        Args:
            path: the file; replaced if it exists.

        Raises:
            RunError: if the file cannot be written.
        """
        save(path, self.model, self.facts)


class Journal:
    """The files of a run as they grow: where it starts, a line and a checkpoint per round, the model."""

    def __init__(self, config: RunConfig, folder: RunFolder | None, resume: bool) -> None:
        self._config, self._folder = config, folder
        self.ledger = Ledger(folder.history if folder else None)
        self._state = folder.open(config, resume) if folder else None
        self.known_masks = self._state.known_masks if self._state else KnownMasks()
        if folder:
            if self._state is None:
                self._check_restart(folder)
            self.ledger.rewind(self._state.round if self._state else None)

    def _check_restart(self, folder: RunFolder) -> None:
        """Refuse to repeat a run whose checkpoint is gone; say so where it was stopped before it had one."""
        known = read_history(folder.history) if folder.history.exists() else []
        # A checkpoint is written while the rounds up to the next one are running.
        if known and (known[-1].round > 2 * self._config.checkpoint_every or folder.model.exists()):
            raise RunError(
                f"{folder.checkpoint} is gone: {folder.history.name} holds {len(known):,} rounds. "
                f"{anew(folder.checkpoint)}"
            )
        if known:
            notice(f"{folder.path} has no checkpoint yet: the run begins at its first round.")

    @property
    def server(self) -> State:
        """What the server keeps, where the run goes on."""
        return self._state.server if self._state else {}

    @property
    def clients(self) -> dict[int, State]:
        """What the clients keep, where the run goes on."""
        return self._state.clients if self._state else {}

    def aggregator(self) -> Aggregator:
        """The aggregation of the run, where it goes on."""
        config, privacy = self._config, None
        if config.private:
            releases = Releases(self._folder.privacy if self._folder else None)
            releases.check(self._state.round if self._state else 0)
            privacy = Privacy(config, config.clients, config.participation, config.rounds, releases)
        return Aggregator(config, [entry.updates for entry in self.ledger.entries], privacy)

    def start(self, initial: Callable[[], SparseModel]) -> tuple[SparseModel, int]:
        """The model to go on from, and the first round to run."""
        model = initial()
        if self._folder and self._state:
            self._state.check_fits(model.layout, self._folder.checkpoint)
            return self._state.model, self._state.round + 1
        return model, self._config.method.first_round

    def keep(
        self,
        rounds: Iterable[Played],
        model: SparseModel,
        clients: dict[int, State],
        on_round: Callable[[Entry], None] | None = None,
    ) -> SparseModel:
        """Write every round as it ends. Returns the last model: `model` itself where no round is left.

        A checkpoint is fetched and written while the next round runs: on a GPU it took a tenth of a short run's time,
        and 0.08 s per round for vgg16. A run that is stopped between two of them leaves one of its last round.
        """
        config, seen = self._config, on_round or (lambda entry: None)
        settings = to_toml(config)
        for entry in self.ledger.entries:
            seen(entry)
        path = self._folder.checkpoint if self._folder else None
        written: Future[None] | None = None
        state: Checkpoint | None = None  # of the last round, where it is not being written
        writer = ThreadPoolExecutor(1, initializer=_use_own_stream)
        try:
            for model, entry, server in rounds:
                with uninterrupted():
                    self.ledger.append(entry)
                    if path:
                        masks = self.known_masks.copy()
                        state = Checkpoint(entry.round, model, server, dict(clients), masks, settings)
                    due = entry.round % config.checkpoint_every == 0 or entry.round == config.rounds
                    if path and state and due:
                        if written:
                            written.result()
                        written, state = writer.submit(self._write, state, path), None
                seen(entry)
            if path and state:  # of a run that stopped early, between two checkpoints
                if written:
                    written.result()
                written, state = writer.submit(self._write, state, path), None
            if written:
                written.result()
        except BaseException:
            with ending():
                wait([written] if written else [])
                if path and state:
                    self._write(state, path)
            raise
        finally:
            writer.shutdown()
        return model

    def _write(self, state: Checkpoint, path: Path) -> None:
        self.ledger.sync()
        state.save(path)

    def finish(self, model: SparseModel, dataset: Dataset, graph: dict[str, object]) -> Result:
        """Write the model's file."""
        known = facts(self._config, dataset, self.ledger.entries[-1], graph)
        result = Result(model.on_host(), self.ledger.entries, known)
        if self._folder:
            with uninterrupted():
                result.save(self._folder.model)
        return result


def _use_own_stream() -> None:
    """Give this thread a CUDA stream of its own, so that it and the thread that trains do not wait for each other."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def facts(config: RunConfig, dataset: Dataset, last: Entry, graph: dict[str, object]) -> dict[str, object]:
    """What a model's file says of its training; nothing that differs between equal runs."""
    return {
        "network": config.network,
        "shape": list(dataset.shape) if isinstance(dataset.shape, tuple) else dataset.shape,
        "classes": dataset.outputs,
        "targets": dataset.targets,
        "loss": config.loss,
        "labels": list(dataset.labels),
        "preprocessing": dataset.preprocessing.facts(),
        "method": config.method_name,
        "data": config.data,
        "rounds": last.round,
        "sparsity": last.sparsity,
        **({} if last.accuracy is None else {"accuracy": last.accuracy}),
        **({"metrics": last.metrics} if last.metrics else {}),
        **graph,
    }
