"""A run's whole state in one file: (round, model, what server and clients keep, which masks clients have).

In: a `Checkpoint` to save. Out: the same one from its file, or an error that says how to go on without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import RunError, WireError
from ..model import Layout, SparseModel
from ..state import State, is_array, split
from ..training.settings import MOMENTUM
from ..wire.artefact import read, write
from .known_masks import KnownMasks

SERVER, CLIENT, MASK = "server/", "client-", "mask-"  # the last two with the number of the client, or of the mask
VELOCITY = "velocity-"  # of older checkpoints: a client's momentum


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round`."""

    round: int
    model: SparseModel
    server: State = field(default_factory=dict)
    clients: dict[int, State] = field(default_factory=dict)
    known_masks: KnownMasks = field(default_factory=KnownMasks)
    config: str = ""  # of the run, as its config.toml says it; checkpoints of older versions have none

    def save(self, path: Path) -> None:
        """Write it, atomically."""
        arrays: dict[str, NDArray[Any]] = {}
        numbers: dict[str, dict[str, float]] = {}
        states = {SERVER: self.server} | {f"{CLIENT}{client}/": state for client, state in self.clients.items()}
        for prefix, state in states.items():
            held, numbers[prefix] = split(state)
            arrays |= {f"{prefix}{name}": array for name, array in held.items()}
        masks = {f"{MASK}{version}": bitmap for version, bitmap in self.known_masks.bitmaps.items()}
        seen = list(self.known_masks.seen.items())  # JSON has no numbers as keys
        facts = {"round": self.round, "seen": seen, "config": self.config, "numbers": numbers}
        write(path, self.model.on_host(), facts, arrays | masks)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read it back."""
        try:
            model, facts, arrays = read(path)
        except WireError as error:
            raise RunError(f"the checkpoint cannot be read: {error} {anew(path)}") from error
        try:
            masks = {int(name.removeprefix(MASK)): array for name, array in arrays.items() if name.startswith(MASK)}
            known_masks = KnownMasks(dict(facts["seen"]), masks)
            states = _states(arrays, dict(facts.get("numbers", {})))
            server = states.pop(SERVER, {})
            clients: dict[int, State] = {
                int(prefix.removeprefix(CLIENT).rstrip("/")): state for prefix, state in states.items()
            }
            return cls(int(facts["round"]), model, server, clients, known_masks, str(facts.get("config", "")))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise RunError(f"{path} holds a model, but not the state of a run: {error!r}. {anew(path)}") from error

    def check_fits(self, layout: Layout, path: Path) -> None:
        """Refuse the checkpoint at `path` where it is of another network."""
        momenta = [state[MOMENTUM] for state in self.clients.values() if MOMENTUM in state]
        if self.model.layout != layout or any(len(array) != layout.trainable for array in momenta if is_array(array)):
            raise RunError(f"{path} is of another network than the run's. {anew(path)}")


def _states(arrays: dict[str, NDArray[Any]], numbers: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """State by prefix, from the arrays and numbers of a file."""
    states: dict[str, dict[str, Any]] = {prefix: dict(held) for prefix, held in numbers.items()}
    for name, array in arrays.items():
        if name.startswith(VELOCITY):
            states[f"{CLIENT}{int(name.removeprefix(VELOCITY))}/"] = {MOMENTUM: array}
        elif not name.startswith(MASK):
            prefix, _, own = name.partition("/")
            states.setdefault(f"{prefix}/", {})[own] = array
    return states


def anew(path: Path) -> str:
    """How to go on from a checkpoint that cannot be used."""
    history = path.with_name("history.jsonl")
    return (
        f"Put back a copy that fits {history.name}; or delete {path} and {history}, "
        f"and --resume repeats the run from its first round."
    )
