"""Which node is which client. Flower gives nodes numbers of its own; a node says once which client it is.

In: the nodes that Flower's grid knows. Out: client → node, of those that are connected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from logging import getLogger

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from ...errors import WireError
from .messages import Hello

LOG = getLogger("flwr")  # its lines reach `flwr run --stream`
HELLO_SECONDS = 60.0  # a node that has not said who it is by then is asked again


class ConnectedNodes:
    """The nodes that are connected, by the number of their client."""

    def __init__(
        self, grid: Grid, clients: int, on_hello: Callable[[int, Hello], None], on_return: Callable[[int], None]
    ) -> None:
        self._grid, self._clients, self._on_hello, self._on_return = grid, clients, on_hello, on_return
        self._connected: set[int] = set()  # when it was looked last
        self._nodes: dict[int, int] = {}  # client → node
        self._movable: set[int] = set()  # clients whose number the server chose, until the first round begins
        self._asked: dict[str, tuple[int, float]] = {}  # message → node, and when it was asked
        self._refused: set[int] = set()

    def present(self) -> dict[int, int]:
        """Client → node, of those that are connected now. New nodes are asked who they are, and not waited for."""
        connected = set(self._grid.get_node_ids())
        self._read_hellos(connected)
        self._refused &= connected  # a node that comes back is asked again
        known = {*self._nodes.values(), *self._refused, *(node for node, _ in self._asked.values())}
        if new := sorted(connected - known):
            asks = [Message(Hello().content(), node, MessageType.QUERY, ttl=HELLO_SECONDS) for node in new]
            now = time.monotonic()
            self._asked |= {id: (node, now) for id, node in zip(self._grid.push_messages(asks), new, strict=True) if id}
        present = {client: node for client, node in self._nodes.items() if node in connected}
        for client, node in present.items():
            if node not in self._connected:
                self._on_return(client)
        self._connected = connected
        return present

    def _read_hellos(self, connected: Collection[int]) -> None:
        """Read the replies of the nodes that were asked who they are."""
        if not self._asked:
            return
        for reply in self._grid.pull_messages(list(self._asked)):
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (0, 0.0))
            if not node:
                continue
            try:
                if reply.has_error():
                    raise WireError(reply.error.reason)
                self._assign(node, Hello.read(reply.content), connected)
            except WireError as error:
                LOG.warning("node %d is left out: %s", node, error)
                self._refused.add(node)
        late = time.monotonic() - HELLO_SECONDS
        self._asked = {id: (node, asked) for id, (node, asked) in self._asked.items() if asked > late}

    def settle(self) -> None:
        """The first round begins: each node keeps its number, as it keeps its momentum under it."""
        self._movable.clear()

    def _assign(self, node: int, hello: Hello, connected: Collection[int]) -> None:
        """Give a node the number that it asks for, else a free one.

        A number that was asked for goes before one that the server chose: until the first round, the other node moves.
        """
        free = next((free for free in range(self._clients) if free not in self._nodes), self._clients)
        client = free if hello.client == -1 else hello.client
        if not 0 <= client < self._clients:
            asks = "it asks for any number" if hello.client == -1 else f"it is client {client}"
            raise WireError(f"{asks}, but the run has the clients 0 … {self._clients - 1}; {len(self._nodes)} joined")
        if (holder := self._nodes.get(client)) in connected:
            if client not in self._movable or free == self._clients:
                raise WireError(f"client {client} is connected already, as node {holder}")
            self._nodes[free] = self._nodes[client]
            self._movable.add(free)
        self._nodes[client] = node
        (self._movable.add if hello.client == -1 else self._movable.discard)(client)
        self._on_hello(client, hello)
