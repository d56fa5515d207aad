"""A run's whole state in one file: (round, model, what clients keep across rounds)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import RunError, WireError
from ..model import Floats, SparseModel
from ..wire.artefact import read, write


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after `round`."""

    round: int
    model: SparseModel
    velocities: dict[int, Floats] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it, atomically."""
        arrays = {f"velocity-{client}": velocity for client, velocity in self.velocities.items()}
        write(path, self.model, {"round": self.round}, arrays)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read it back."""
        try:
            model, facts, arrays = read(path)
        except WireError as error:
            raise RunError(f"the checkpoint cannot be read: {error}") from error
        velocities = {int(name.removeprefix("velocity-")): array for name, array in arrays.items()}
        return cls(int(facts["round"]), model, velocities)
