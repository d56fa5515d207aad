"""What is known of a command while it runs: how far it is, and which of its processes are there.

In: rounds and processes, as the command sees them. Out: the answer to /health, and numbers for metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..federation.ledger import Entry
from .http_server import Reply


@dataclass
class Status:
    """The state of `serve` or `join`."""

    role: str  # "server" or "client"
    state: str = "starting"
    rounds: int = 0
    entries: list[Entry] = field(default_factory=list)
    processes: Callable[[], dict[str, bool]] = dict  # name → whether it runs
    restarts: int = 0
    keys: Path | None = None  # folder whose certificates are watched
    began: float = field(default_factory=time.time)
    last_round_at: float | None = None

    def show(self, entry: Entry) -> None:
        """Take a finished round."""
        self.entries.append(entry)
        self.state, self.last_round_at = "running", time.time()

    @property
    def healthy(self) -> bool:
        """Whether every process that must be there is there."""
        return all(self.processes().values())

    def health(self) -> Reply:
        """Status 200 where everything runs, 503 where something is gone."""
        from .. import __version__

        found: dict[str, object] = {"status": "ok" if self.healthy else "failing", "role": self.role}
        found |= {"state": self.state, "processes": self.processes(), "version": __version__}
        if self.role == "server":
            found |= {"round": self.entries[-1].round if self.entries else 0, "rounds": self.rounds}
        return Reply.of_json(found, 200 if self.healthy else 503)
