"""One run from its config to its files: resumable, the same bytes whenever it was stopped."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..config import RunConfig, make_config, read_toml, to_toml
from ..data import Dataset, holdings, load_dataset
from ..errors import ConfigError, RunError
from ..model import Floats, SparseModel
from ..notices import notice
from ..stopping import ending, listening, uninterrupted
from ..wire.artefact import save
from ..wire.files import atomic, partials
from .checkpoint import Checkpoint, anew
from .ledger import Entry, Ledger, read_history
from .lock import held
from .memory import Memory
from .rounds import play
from .simulated import Machine, Simulated
from .wired import Wired


@dataclass(frozen=True)
class Result:
    """The result of a run: its model, one entry per round, and facts about its training for the model's file.

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
        ended = f"accuracy {last.accuracy:.4f} after round {last.round}" if last else "no round"
        return f"Result({ended}, {self.model!r})"

    def save(self, path: str | Path) -> None:
        """Write the file that `run` leaves as `model.fsz`: the model, its network's graph and how it was trained.

        `fedsparsify.Engine(path)` runs it, and `fedsparsify export` converts it.

        Args:
            path: the file; replaced if it exists.

        Raises:
            RunError: if the file cannot be written.
        """
        save(path, self.model, self.facts)


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
        """Make the folder ready for `config`; the checkpoint to go on from, if there is one. It must be held."""
        self.check(config, resume)
        state = Checkpoint.load(self.checkpoint) if _there(self.checkpoint) else None
        if state:
            self._check_state(config, state)
        for path in (self.config, self.history, self.checkpoint, self.model, self.partition):
            for partial in partials(path):  # of a process that was killed
                partial.unlink(missing_ok=True)
        if not self.config.exists():
            with atomic(self.config) as file:
                file.write(to_toml(config).encode())
        return state

    def check(self, config: RunConfig, resume: bool = True) -> None:
        """Refuse a folder that holds a run of another configuration, or any run that is not to go on."""
        found = [path for path in (self.config, self.history, self.checkpoint, self.model) if _there(path)]
        if found and not resume:
            raise RunError(
                f"{self.path} already holds a run ({found[0].name}). "
                f"Continue it with --resume, or choose another --out."
            )
        if _there(self.config) and (different := config.differences(self.saved_config())):
            raise RunError(
                f"{self.path} holds a run of another configuration: {'; '.join(different)}. "
                f"Resume it without these, or choose another --out."
            )

    def saved_config(self) -> RunConfig:
        """The config of the run that the folder holds."""
        remedy = (
            f"Delete it and resume with the run's own settings (fedsparsify run CONFIG.toml --out {self.path} "
            f"--resume; the checkpoint knows whether they are the same), or choose another --out."
        )
        try:
            table = read_toml(self.config)
        except ConfigError as error:
            raise RunError(f"{error} {remedy}") from error
        if not isinstance(table.get("method"), dict):
            raise RunError(f"{self.config} is empty or cut off: it has no [method]. {remedy}")
        try:
            return make_config(table, self.config)
        except ConfigError as error:
            raise RunError(f"{self.config} cannot be used: {error} {remedy}") from error

    def _check_state(self, config: RunConfig, state: Checkpoint) -> None:
        """Refuse a checkpoint that another run left."""
        different = []
        if state.config:
            try:
                different = config.differences(make_config(tomllib.loads(state.config)))
            except (ConfigError, tomllib.TOMLDecodeError) as error:
                different = [str(error)]
        if not config.method.first_round <= state.round <= config.rounds:
            different.append(f"it is of round {state.round}, and the run has {config.rounds}")
        if different:
            raise RunError(
                f"{self.checkpoint} is of a run of another configuration: {'; '.join(different)}. "
                f"Resume with that run's settings, or choose another --out. {anew(self.checkpoint)}"
            )


def _there(path: Path) -> bool:
    """Whether there is anything of that name, a link to nowhere included."""
    return os.path.lexists(path)


def run(
    config: RunConfig,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Entry], None] | None = None,
    dataset: Dataset | None = None,
    machine: Machine | None = None,
) -> Result:
    """Simulate a federated run.

    Args:
        config: what to run.
        out: the folder for the run's files; None: write no files.
        resume: continue the run in `out` after its last checkpoint.
        on_round: is called with the entry of each finished round.
        dataset: the data set, if it is loaded already.
        machine: network and samples that runs of one environment share.

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
    with listening():
        dataset = dataset or load_dataset(config.data)
        federation = Simulated(config, dataset, machine)
        _ = federation.machine.graph  # a network without one is named now, not after the last round
        with held(folder.path) if folder else nullcontext():
            return _play(config, folder, resume, on_round, dataset, federation)


def _play(
    config: RunConfig,
    folder: RunFolder | None,
    resume: bool,
    on_round: Callable[[Entry], None] | None,
    dataset: Dataset,
    federation: Simulated,
) -> Result:
    """Play a run in a folder that this process holds."""
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
    return journal.finish(model, dataset, federation.graph_of(model))


class Journal:
    """What a run writes down, whoever carries it: where it starts, a line and a checkpoint a round, the model."""

    def __init__(self, config: RunConfig, folder: RunFolder | None, resume: bool) -> None:
        self._config, self._folder = config, folder
        self.ledger = Ledger(folder.history if folder else None)
        self._state = folder.open(config, resume) if folder else None
        self.memory = self._state.memory if self._state else Memory()
        if folder:
            if self._state is None:
                self._check_restart(folder)
            self.ledger.rewind(self._state.round if self._state else None)

    def _check_restart(self, folder: RunFolder) -> None:
        """Refuse to play a run again whose checkpoint is gone; say so where it was stopped before it had one."""
        known = read_history(folder.history) if folder.history.exists() else []
        # A checkpoint is written while the rounds up to the next one are played.
        if known and (known[-1].round > 2 * self._config.checkpoint_every or folder.model.exists()):
            raise RunError(
                f"{folder.checkpoint} is gone: {folder.history.name} holds {len(known):,} rounds. "
                f"{anew(folder.checkpoint)}"
            )
        if known:
            notice(f"{folder.path} has no checkpoint yet: the run begins at its first round.")

    @property
    def velocities(self) -> dict[int, Floats]:
        """Momentum of the clients where the run goes on."""
        return self._state.velocities if self._state else {}

    def start(self, initial: Callable[[], SparseModel]) -> tuple[SparseModel, int]:
        """The model to go on from, and the first round to play."""
        model = initial()
        if self._folder and self._state:
            self._state.check_fits(model.layout, self._folder.checkpoint)
            return self._state.model, self._state.round + 1
        return model, self._config.method.first_round

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
        settings = to_toml(config)
        for entry in self.ledger.entries:
            seen(entry)
        path = self._folder.checkpoint if self._folder else None
        written: Future[None] | None = None
        state: Checkpoint | None = None  # of the last round, where it is not being written
        writer = ThreadPoolExecutor(1, initializer=_beside_the_main_line)
        try:
            for model, entry in rounds:
                with uninterrupted():
                    self.ledger.append(entry)
                    if path:
                        state = Checkpoint(entry.round, model, dict(velocities), self.memory.copy(), settings)
                    due = entry.round % config.checkpoint_every == 0 or entry.round == config.rounds
                    if path and state and due:
                        if written:
                            written.result()
                        written, state = writer.submit(self._write, state, path), None
                seen(entry)
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
        """Leave the model's file."""
        known = facts(self._config, dataset, self.ledger.entries[-1], graph)
        result = Result(model.on_host(), self.ledger.entries, known)
        if self._folder:
            with uninterrupted():
                result.save(self._folder.model)
        return result


def _beside_the_main_line() -> None:
    """What this thread does on a GPU neither waits for the thread that trains nor holds it up."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def settled(config: RunConfig, measure: Callable[[], str], folder: RunFolder | None) -> RunConfig:
    """The config with figures in place of what depends on the machine: those of the run that goes on, or new ones."""

    def times() -> str:
        if folder and folder.config.exists():
            return str(getattr(folder.saved_config().method, "times", "uniform"))
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
