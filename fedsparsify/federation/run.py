"""One run from its config to its files: resumable, the same bytes whenever it was stopped."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from ..config import RunConfig, load_config, to_toml
from ..data import Dataset, holdings, load_dataset
from ..errors import RunError
from ..model import SparseModel
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
        if not resume:
            raise RunError(f"{self.path} already holds a run. Continue it with --resume, or choose another --out.")
        self.check(config)
        return Checkpoint.load(self.checkpoint) if self.checkpoint.exists() else None

    def check(self, config: RunConfig) -> None:
        """Refuse a folder that holds a run of another configuration."""
        if not self.config.exists():
            return
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
    folder = RunFolder(Path(out)) if out is not None else None
    config = settled(config, federation, folder)
    ledger = Ledger(folder.history if folder else None)
    state = folder.open(config, resume) if folder else None
    if folder:
        ledger.rewind(state.round if state else None)
        with atomic(folder.partition) as file:
            file.write(json.dumps(holdings(dataset.y_train, federation.parts, dataset.classes).tolist()).encode())
    if state:
        federation.velocities.update(state.velocities)
    memory = state.memory if state else Memory()
    carrier = Wired(federation, config.wire_precision, memory) if config.wire else federation
    model, first = (
        (federation.place(state.model), state.round + 1) if state else (federation.initial(), config.method.first_round)
    )
    seen = on_round or (lambda entry: None)
    for entry in ledger.entries:
        seen(entry)
    probe = federation.probe if config.diagnose else None
    rounds = play(carrier, config.method, model, first, config.rounds, config.seed, config.min_clients, probe)
    for model, entry in rounds:
        with uninterrupted():
            ledger.append(entry)
            if folder and (entry.round % config.checkpoint_every == 0 or entry.round == config.rounds):
                ledger.sync()
                Checkpoint(entry.round, model.on_host(), federation.velocities, memory).save(folder.checkpoint)
        seen(entry)
    if folder:
        save(folder.model, model.on_host(), facts(config, dataset, ledger.entries[-1], federation.machine.graph))
    return Result(model.on_host(), ledger.entries)


def settled(config: RunConfig, federation: Simulated, folder: RunFolder | None) -> RunConfig:
    """The config with figures in place of what depends on the machine: those of the run that goes on, or new ones."""

    def times() -> str:
        if folder and folder.config.exists():
            return str(getattr(load_config(folder.config).method, "times", "uniform"))
        return federation.measure_times()

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
