"""One side of the proxy: an HTTP/1.1 stream with time limits, parsed by h11, and the limits per caller.

In: bytes of a stream. Out: h11's events, or a timeout.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import h11

CHUNK = 64 << 10  # bytes in flight per direction


@dataclass(frozen=True)
class Limits:
    """What a caller may take of the server."""

    connections: int = 1024
    address_connections: int = 512  # of one address: clients behind one gateway share it
    head_bytes: int = 16 << 10
    body_bytes: int = 2 << 30  # of a registered node
    stranger_bytes: int = 64 << 10  # body of a request without a registered node's signature
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0  # for the whole head of a connection's first request
    idle_seconds: float = 75.0  # between two requests of a node, and between two pieces of a body
    body_rate: int = 8 << 10  # bytes per second, below which a body takes too long
    answer_seconds: float = 300.0  # that the SuperLink may take
    close_seconds: float = 2.0


class Peer:
    """One side of the proxy: a stream, and h11's state of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        role: type[h11.CLIENT | h11.SERVER],
        limits: Limits,
    ) -> None:
        self.reader, self.writer, self._limits = reader, writer, limits
        self.http = h11.Connection(role, max_incomplete_event_size=limits.head_bytes)

    async def receive(self, seconds: float) -> object:
        """h11's next event; each piece of it must come within so many seconds."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(seconds):
                self.http.receive_data(await self.reader.read(CHUNK))
        return event

    async def send(self, event: h11.Event) -> None:
        """Send an event, once the other side has taken what came before."""
        if data := self.http.send(event):
            self.writer.write(data)
            async with asyncio.timeout(self._limits.idle_seconds):
                await self.writer.drain()

    async def close(self) -> None:
        """End the stream. What was written is still sent, if the other side takes it soon."""
        self.writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.close_seconds):
                await self.writer.wait_closed()
        self.writer.transport.abort()
