"""The report's page of runs that are still going: the page asks for its values again every two seconds.

In: a run's folder or a sweep's, as it grows. Out: the page and, at /data.json, its values.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import FedSparsifyError
from ..federation.ledger import Entry, read_history
from ..report import environments_of, load_runs
from ..report.page import page_text, page_values
from ..text import digest, plain
from .http_server import Reply, Route

SHOWN = 8  # clients left out, the latest first


class LivePage:
    """The page of what is in a folder. `state` says in a few words what the command does now."""

    def __init__(self, folder: Path, rounds: int = 0, state: Callable[[], str] = lambda: "running") -> None:
        self._folder, self._rounds, self._state = folder, rounds, state
        self._lock, self._seen, self._values = threading.Lock(), "", dict[str, Any]()

    def routes(self) -> Mapping[str, Route]:
        """What the server answers."""
        return {"/": self.page, "/data.json": self.values}

    def page(self) -> Reply:
        """The whole page, with the values of now."""
        return Reply("text/html; charset=utf-8", page_text(self._now()).encode("utf-8", "backslashreplace"))

    def values(self) -> Reply:
        """The page's values alone."""
        body = json.dumps(self._now(), ensure_ascii=False, separators=(",", ":"))
        return Reply("application/json", body.encode("utf-8", "backslashreplace"))

    def _now(self) -> dict[str, Any]:
        """The values, computed again when a file of a run has changed."""
        with self._lock:
            seen = digest(f"{self._state()} {_files(self._folder)}")
            if seen != self._seen:
                self._values, self._seen = self._read(seen), seen
            return self._values

    def _read(self, version: str) -> dict[str, Any]:
        notes: list[str] = []
        environments = []
        if self._folder.exists():
            try:
                runs, found = load_runs([self._folder], running=True)
                environments, notes = environments_of(runs), found if runs else []
            except FedSparsifyError as error:
                notes = [str(error)]
        return page_values(environments, notes) | {
            "live": {"version": version, "state": self._state(), **self._facts()}
        }

    def _facts(self) -> dict[str, object]:
        """How far a single run is, and who was left out lately; of a sweep, nothing."""
        entries: list[Entry] = []
        if (history := self._folder / "history.jsonl").exists():
            try:
                entries = read_history(history)
            except FedSparsifyError:
                return {}
        if not entries:
            return {"rounds": self._rounds}
        last = entries[-1]
        left = [
            f"round {entry.round}, {plain(client)}: {plain(reason)}"
            for entry in reversed(entries[-100:])
            for client, reason in entry.refused.items()
        ]
        return {
            "rounds": self._rounds,
            "round": last.round,
            "clients": last.clients,
            "leftOut": len(last.refused),
            "seconds": round(last.seconds, 2),
            "left": left[:SHOWN],
        }


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Names, times and sizes of the files that the page is made of."""
    found = []
    for name in ("config.toml", "history.jsonl", "model.fsz"):
        for path in sorted({*folder.glob(name), *folder.glob(f"*/{name}"), *folder.glob(f"*/*/{name}")}):
            try:
                facts = path.stat()
            except OSError:
                continue
            found.append((str(path), facts.st_mtime_ns, facts.st_size))
    return found
