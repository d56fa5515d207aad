"""A run's whole state in one file: (round, model, what clients keep across rounds, which masks they have seen)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RunError, WireError
from ..model import Floats, SparseModel
from ..wire.artefact import read, write
from .memory import Memory

VELOCITY, MASK = "velocity-", "mask-"  # and the number of the client, or of the mask's version


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after `round`."""

    round: int
    model: SparseModel
    velocities: dict[int, Floats] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def save(self, path: Path) -> None:
        """Write it, atomically."""
        arrays = {f"{VELOCITY}{client}": velocity for client, velocity in self.velocities.items()}
        masks = {f"{MASK}{version}": bitmap for version, bitmap in self.memory.bitmaps.items()}
        seen = list(self.memory.seen.items())  # JSON has no numbers as keys
        write(path, self.model.on_host(), {"round": self.round, "seen": seen}, arrays | masks)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read it back."""
        try:
            model, facts, arrays = read(path)
        except WireError as error:
            raise RunError(f"the checkpoint cannot be read: {error}") from error
        try:
            memory = Memory(dict(facts["seen"]), _numbered(arrays, MASK))
            return cls(int(facts["round"]), model, _numbered(arrays, VELOCITY), memory)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path} holds a model, but not the state of a run: {error!r}.") from error


def _numbered(arrays: dict[str, Any], prefix: str) -> dict[int, Any]:
    return {int(name.removeprefix(prefix)): array for name, array in arrays.items() if name.startswith(prefix)}
