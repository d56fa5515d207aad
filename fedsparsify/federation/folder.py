"""The files of a run, and whether a folder may be used for one.

In: a folder and a run's config. Out: the paths of its files, and the checkpoint to resume from; or an error that says
why the folder cannot hold this run.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RunConfig, make_config, read_toml, to_toml
from ..errors import ConfigError, RunError
from ..wire.files import atomic, partials
from .checkpoint import Checkpoint, anew


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
        """One line per round."""
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
    def privacy(self) -> Path:
        """One line per release of a noised sum, of private runs."""
        return self.path / "privacy.jsonl"

    @property
    def partition(self) -> Path:
        """How many samples of each class each client holds."""
        return self.path / "partition.json"

    def open(self, config: RunConfig, resume: bool) -> Checkpoint | None:
        """Prepare the folder for `config`. Returns the checkpoint to resume from, if any. The caller holds the lock."""
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
        """Refuse a folder that holds a run of another configuration, or any run where `resume` is off."""
        mine = (self.config, self.history, self.checkpoint, self.model, self.privacy)
        found = [path for path in mine if _there(path)]
        if found and not resume:
            raise RunError(
                f"{self.path} already holds a run ({found[0].name}). "
                f"Continue it with --resume, or choose another --out."
            )
        if _there(self.config) and (different := config.differences(self.saved_config(config))):
            raise RunError(
                f"{self.path} holds a run of another configuration: {'; '.join(different)}. "
                f"Resume it without these, or choose another --out."
            )

    def saved_config(self, like: RunConfig | None = None) -> RunConfig:
        """The config of the run that the folder holds; a method that cannot be imported may be that of `like`."""
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
            return make_config(_with_method_of(table, like), self.config)
        except ConfigError as error:
            raise RunError(f"{self.config} cannot be used: {error} {remedy}") from error

    def _check_state(self, config: RunConfig, state: Checkpoint) -> None:
        """Refuse a checkpoint that another run left."""
        different = []
        if state.config:
            try:
                different = config.differences(make_config(_with_method_of(tomllib.loads(state.config), config)))
            except (ConfigError, tomllib.TOMLDecodeError) as error:
                different = [str(error)]
        if not config.method.first_round <= state.round <= config.rounds:
            different.append(f"it is of round {state.round}, and the run has {config.rounds}")
        if different:
            raise RunError(
                f"{self.checkpoint} is of a run of another configuration: {'; '.join(different)}. "
                f"Resume with that run's settings, or choose another --out. {anew(self.checkpoint)}"
            )


def _with_method_of(table: dict[str, Any], like: RunConfig | None) -> dict[str, Any]:
    """The table with the class itself in place of its name, where it is the class of `like`."""
    method = table.get("method")
    if like is None or not isinstance(method, dict) or method.get("name") != like.method_name:
        return table
    return table | {"method": method | {"name": type(like.method)}}


def _there(path: Path) -> bool:
    """Whether there is anything of that name, a link to nowhere included."""
    return os.path.lexists(path)
