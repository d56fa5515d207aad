"""A small read-only HTTP server in a thread of the command that it watches.

In: an address, and a function per path. Out: their answers to GET and HEAD. Everything else is refused.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..errors import RunError
from .address import Address

SECONDS = 10.0  # that a caller may take for a request
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"


@dataclass(frozen=True)
class Reply:
    """What is answered."""

    kind: str
    body: bytes
    status: int = 200

    @classmethod
    def of_json(cls, value: object, status: int = 200) -> Reply:
        """A value as JSON."""
        return cls("application/json", json.dumps(value, separators=(",", ":")).encode(), status)


Route = Callable[[], Reply]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.at, self.routes = address, routes
        super().__init__((address.host, address.port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that left is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SECONDS
    server_version, sys_version = "fedsparsify", ""

    def do_GET(self) -> None:
        """Answer."""
        route = self.server.routes.get(self.path.partition("?")[0])
        if not self._meant_for_us():
            reply = Reply("text/plain", b"this address is for this machine's own names\n", 403)
        elif route is None:
            reply = Reply("text/plain", f"there is {', '.join(sorted(self.server.routes))}\n".encode(), 404)
        else:
            reply = route()
        self.send_response(reply.status)
        headers = {"Content-Type": reply.kind, "Content-Length": str(len(reply.body)), "Cache-Control": "no-store"}
        headers |= {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_HEAD = do_GET

    def _meant_for_us(self) -> bool:
        """Whether the request names this machine: another site's page must not read ours under a name of its own."""
        host = self.headers.get("Host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        return not self.server.at.loopback or name in ("localhost", "127.0.0.1", "[::1]", self.server.at.host)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: callers come every few seconds."""


@contextmanager
def serving(wanted: Sequence[tuple[Address | None, str, Mapping[str, Route]]]) -> Iterator[dict[Address, Address]]:
    """Serve (address, flag, routes) within the block; routes of one address are served together.

    Yields where each one listens: port 0 means a free one.
    """
    joined: dict[Address, dict[str, Route]] = {}
    flags: dict[Address, str] = {}
    for address, flag, routes in wanted:
        if address:
            joined.setdefault(address, {}).update(routes)
            flags[address] = flag
    with ExitStack() as stack:
        found = {}
        for address, routes in joined.items():
            try:
                server = _Server(address, routes)
            except (OSError, OverflowError) as error:
                why = getattr(error, "strerror", None) or str(error)
                where = f"{address.host}, port {address.port}"
                raise RunError(f"nothing can listen at {where}: {why}. Choose another {flags[address]}.") from error
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
            found[address] = Address(address.host, int(server.server_address[1]))
        yield found
