"""From the flags `--metrics` and `--page` to what is served.

In: a status and addresses. Out: a line on each address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .address import Address
from .http_server import Route, serving
from .status import Status


@contextmanager
def watched(
    status: Status, metrics: Address | None = None, page: Address | None = None, folder: Path | None = None
) -> Iterator[list[str]]:
    """Serve within the block; yields a line per address for the operator."""
    watch: dict[str, Route] = {"/health": status.health}
    pages: dict[str, Route] = {"/health": status.health}
    if metrics:
        from .metrics import metrics_of

        watch["/metrics"] = metrics_of(status)
    if page and folder:
        from .live_page import LivePage

        pages |= LivePage(folder, status.rounds, lambda: status.state).routes()
    with serving([(metrics, "--metrics", watch), (page, "--page", pages)]) as where:
        lines = []
        for wanted, what, path in (
            (page, "Live page", ""),
            (metrics, "Metrics", "metrics"),
            (metrics, "Health", "health"),
        ):
            if wanted:
                lines.append(f"{what}: {where[wanted].url}{path}")
        for found in where.values():
            if not found.loopback:
                lines.append(f"{found.host}:{found.port} asks for no password: let a firewall choose who reaches it.")
        yield lines
