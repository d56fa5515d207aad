"""One run from its config to its files: resumable, the same bytes whenever it was stopped."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import torch

from ..config import RunConfig, load_config, to_toml
from ..data import Dataset, holdings, load_dataset
from ..errors import RunError
from ..model import Floats, SparseModel
from ..wire.artefact import save
from ..wire.files import atomic
from .checkpoint import Checkpoint
from .ledger import Entry, Ledger
from .memory import Memory
from .rounds import play
from .simulated import Machine, Simulated
from .wired import Wired


@dataclass(frozen=True)
class Result:
    """What a run leaves."""

    model: SparseModel
    history: list[Entry]


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.toml"

    @property
    def history(self) -> Path:
        """One line a round."""
        return self.path / "history.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The state to resume from."""
        return self.path / "checkpoint.fsz"

    @property
    def model(self) -> Path:
        """The model after the last round."""
        return self.path / "model.fsz"

    @property
    def partition(self) -> Path:
        """Who holds what: samples by client and class."""
        return self.path / "partition.json"

    def open(self, config: RunConfig, resume: bool) -> Checkpoint | None:
        """Make the folder ready for `config`; the checkpoint to go on from, if there is one."""
        if not self.config.exists():
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"{self.path} cannot be made: {error.strerror}.") from error
            with atomic(self.config) as file:
                file.write(to_toml(config).encode())
            return None
        self.check(config, resume)
        return Checkpoint.load(self.checkpoint) if self.checkpoint.exists() else None

    def check(self, config: RunConfig, resume: bool = True) -> None:
        """Refuse a folder that holds a run of another configuration, or any run that is not to go on."""
        if not self.config.exists():
            return
        if not resume:
            raise RunError(f"{self.path} already holds a run. Continue it with --resume, or choose another --out.")
        if different := config.differences(load_config(self.config)):
            raise RunError(
                f"{self.path} holds a run of another configuration: {'; '.join(different)}. "
                f"Resume it without these, or choose another --out."
            )


def run(
    config: RunConfig,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Entry], None] | None = None,
    dataset: Dataset | None = None,
    machine: Machine | None = None,
) -> Result:
    """Simulate a run. With `out`, leave its files there; with `resume`, go on where they end.

    Runs of one environment may share a data set and a machine.
    """
    dataset = dataset or load_dataset(config.data)
    federation = Simulated(config, dataset, machine)
    _ = federation.machine.graph  # a network without one is named now, not after the last round
    folder = RunFolder(Path(out)) if out is not None else None
    config = settled(config, federation.measure_times, folder)
    journal = Journal(config, folder, resume)
    if folder:
        with atomic(folder.partition) as file:
            file.write(json.dumps(holdings(dataset.y_train, federation.parts, dataset.classes).tolist()).encode())
    federation.velocities.update(journal.velocities)
    carrier = Wired(federation, config.wire_precision, journal.memory) if config.wire else federation
    model, first = journal.start(federation.initial)
    model = federation.place(model)
    probe = federation.probe if config.diagnose else None
    rounds = play(carrier, config.method, model, first, config.rounds, config.seed, config.min_clients, probe)
    model = journal.keep(rounds, model, federation.velocities, on_round)
    journal.finish(model, dataset, federation.graph_of(model))
    return Result(model.on_host(), journal.ledger.entries)


class Journal:
    """What a run writes down, whoever carries it: where it starts, a line and a checkpoint a round, the model."""

    def __init__(self, config: RunConfig, folder: RunFolder | None, resume: bool) -> None:
        self._config, self._folder = config, folder
        self.ledger = Ledger(folder.history if folder else None)
        self._state = folder.open(config, resume) if folder else None
        self.memory = self._state.memory if self._state else Memory()
        if folder:
            self.ledger.rewind(self._state.round if self._state else None)

    @property
    def velocities(self) -> dict[int, Floats]:
        """Momentum of the clients where the run goes on."""
        return self._state.velocities if self._state else {}

    def start(self, initial: Callable[[], SparseModel]) -> tuple[SparseModel, int]:
        """The model to go on from, and the first round to play."""
        if self._state:
            return self._state.model, self._state.round + 1
        return initial(), self._config.method.first_round

    def keep(
        self,
        rounds: Iterable[tuple[SparseModel, Entry]],
        model: SparseModel,
        velocities: dict[int, Floats],
        on_round: Callable[[Entry], None] | None = None,
    ) -> SparseModel:
        """Write every round down as it ends; the last model, which is `model` where there is nothing left to play.

        A checkpoint is fetched and written while the next round is played: on a GPU it took a tenth of a short run's
        time, and 0.08 s a round for vgg16. A run that is stopped between two of them leaves one of its last round.
        """
        config, seen = self._config, on_round or (lambda entry: None)
        for entry in self.ledger.entries:
            seen(entry)
        path = self._folder.checkpoint if self._folder else None
        written: Future[None] | None = None
        state: Checkpoint | None = None  # of the last round, where it is not being written
        try:
            with ThreadPoolExecutor(1, initializer=_beside_the_main_line) as writer:
                for model, entry in rounds:
                    with uninterrupted():
                        self.ledger.append(entry)
                        if path:
                            state = Checkpoint(entry.round, model, dict(velocities), self.memory.copy())
                        due = entry.round % config.checkpoint_every == 0 or entry.round == config.rounds
                        if path and state and due:
                            if written:
                                written.result()
                            written, state = writer.submit(self._write, state, path), None
                    seen(entry)
        except BaseException:
            if path and state:
                with uninterrupted():
                    self._write(state, path)
            raise
        if written:
            written.result()
        return model

    def _write(self, state: Checkpoint, path: Path) -> None:
        self.ledger.sync()
        state.save(path)

    def finish(self, model: SparseModel, dataset: Dataset, graph: dict[str, object]) -> None:
        """Leave the model's file."""
        if self._folder:
            save(self._folder.model, model.on_host(), facts(self._config, dataset, self.ledger.entries[-1], graph))


def _beside_the_main_line() -> None:
    """What this thread does on a GPU neither waits for the thread that trains nor holds it up."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def settled(config: RunConfig, measure: Callable[[], str], folder: RunFolder | None) -> RunConfig:
    """The config with figures in place of what depends on the machine: those of the run that goes on, or new ones."""

    def times() -> str:
        if folder and folder.config.exists():
            return str(getattr(load_config(folder.config).method, "times", "uniform"))
        return measure()

    method = config.method.settled(times)
    return config if method is config.method else replace(config, method=method)


def facts(config: RunConfig, dataset: Dataset, last: Entry, graph: dict[str, object]) -> dict[str, object]:
    """What a model's file says of its training; nothing that differs between equal runs."""
    scale = dataset.preprocessing
    return {
        "network": config.network,
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "labels": list(dataset.labels),
        "preprocessing": {"divisor": scale.divisor, "mean": list(scale.mean), "std": list(scale.std)},
        "method": config.method_name,
        "data": config.data,
        "rounds": config.rounds,
        "sparsity": last.sparsity,
        "accuracy": last.accuracy,
        **graph,
    }


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back while something is being written, and let it through afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending and callable(before):
        before(*pending[0])
