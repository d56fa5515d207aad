"""A run's whole state in one file: (round, model, what clients keep across rounds, which masks they have).

In: a `Checkpoint` to save. Out: the same one from its file, or an error that says how to go on without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import RunError, WireError
from ..model import Floats, Layout, SparseModel
from ..wire.artefact import read, write
from .known_masks import KnownMasks

VELOCITY, MASK = "velocity-", "mask-"  # and the number of the client, or of the mask's version


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round`."""

    round: int
    model: SparseModel
    velocities: dict[int, Floats] = field(default_factory=dict)
    known_masks: KnownMasks = field(default_factory=KnownMasks)
    config: str = ""  # of the run, as its config.toml says it; checkpoints of older versions have none

    def save(self, path: Path) -> None:
        """Write it, atomically."""
        arrays = {f"{VELOCITY}{client}": velocity for client, velocity in self.velocities.items()}
        masks = {f"{MASK}{version}": bitmap for version, bitmap in self.known_masks.bitmaps.items()}
        seen = list(self.known_masks.seen.items())  # JSON has no numbers as keys
        write(path, self.model.on_host(), {"round": self.round, "seen": seen, "config": self.config}, arrays | masks)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read it back."""
        try:
            model, facts, arrays = read(path)
        except WireError as error:
            raise RunError(f"the checkpoint cannot be read: {error} {anew(path)}") from error
        try:
            known_masks = KnownMasks(dict(facts["seen"]), _numbered(arrays, MASK))
            velocities, config = _numbered(arrays, VELOCITY), str(facts.get("config", ""))
            return cls(int(facts["round"]), model, velocities, known_masks, config)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RunError(f"{path} holds a model, but not the state of a run: {error!r}. {anew(path)}") from error

    def check_fits(self, layout: Layout, path: Path) -> None:
        """Refuse the checkpoint at `path` where it is of another network."""
        if self.model.layout != layout or any(v.shape != (layout.trainable,) for v in self.velocities.values()):
            raise RunError(f"{path} is of another network than the run's. {anew(path)}")


def anew(path: Path) -> str:
    """How to go on from a checkpoint that cannot be used."""
    history = path.with_name("history.jsonl")
    return (
        f"Put back a copy that fits {history.name}; or delete {path} and {history}, "
        f"and --resume repeats the run from its first round."
    )


def _numbered(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[int, NDArray[Any]]:
    return {int(name.removeprefix(prefix)): array for name, array in arrays.items() if name.startswith(prefix)}
