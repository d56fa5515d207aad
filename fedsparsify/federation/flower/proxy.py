"""A reverse proxy that passes the calls of nodes to a SuperLink, and nothing else.

Flower 1.41 serves three interfaces on one port: the nodes' own (`/v1/fleet`), the control API, which registers nodes
and starts and stops runs and asks for no account, and the runtime API. `serve` keeps the SuperLink on loopback, and
this process listens for nodes in its place.

Nodes speak HTTP/1.1: a POST with a protobuf body of a stated length. Both sides are parsed by h11, on which Flower's
own server and client are built, over asyncio. Not by uvicorn and httpx: uvicorn has no time limit for a request's
head. Nothing of a request is copied as it came: the proxy writes a new one, with the method and path that it checked,
headers from a list and the length as one number. So there is nothing that two parsers could read in two ways. Bodies
stream in both directions.

Flower reads a whole body before it looks at who sent it, and a SuperLink's database remembers every key that it ever
admitted. The proxy therefore checks the node's signature first, and passes nothing of a node whose public key does not
lie in the keys' folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from logging import INFO, basicConfig, getLogger
from pathlib import Path

import h11

from .proxy_keys import KeyFiles
from .proxy_peer import CHUNK, Limits, Peer
from .proxy_requests import Refused, checked_request
from .signatures import Signatures

LOG = getLogger("fedsparsify.proxy")
ANSWER_HEADERS = (b"content-type", b"content-length", b"flwr-version-incompatibility-message")
FOLLOW_SECONDS = 1.0  # between two looks at the folder of keys
LEAVE, SHOW = 401, 412  # a SuperNode leaves at the first without a word, and shows what the second says
FIRST_CALLS = (b"/v1/fleet/activate-node", b"/v1/fleet/register-node")
NOT_ADMITTED = 2004  # Flower's code
LOGGED = 1000  # refusals that are written down: a stranger must not be able to fill the disk


class Proxy:
    """Listens for nodes and passes their calls to the SuperLink at `superlink` (host, port).

    `own_tls` is what it shows to nodes, `superlink_tls` what it expects of the SuperLink; without them it speaks in
    the clear. Without `signatures` everybody counts as a registered node.
    """

    def __init__(
        self,
        superlink: tuple[str, int],
        limits: Limits,
        own_tls: ssl.SSLContext | None = None,
        superlink_tls: ssl.SSLContext | None = None,
        signatures: Signatures | None = None,
    ) -> None:
        self._superlink, self._limits, self._signatures = superlink, limits, signatures
        self._own_tls, self._superlink_tls = own_tls, superlink_tls
        self._open: Counter[str] = Counter()  # connections by address
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged = 0

    async def serve(self, listener: socket.socket) -> None:
        """Take connections for ever. They are counted here, before a handshake costs anything."""
        loop, limits = asyncio.get_running_loop(), self._limits
        listener.setblocking(False)
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(listener)
            except OSError as error:  # no file descriptors left
                self._log(f"a connection cannot be taken: {error}")
                await asyncio.sleep(0.2)
                continue
            if self._open.total() >= limits.connections or self._open[address] >= limits.address_connections:
                self._log(f"{address}: too many connections")
                connection.close()
                continue
            self._open[address] += 1
            task = asyncio.create_task(self._connection(connection, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def follow(self, keys: KeyFiles) -> None:
        """Use the keys and the certificate that the folder has now, for ever; open connections stay."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            for line in keys.changed():
                LOG.info("%s", line)
            self._own_tls, self._signatures = keys.tls, keys.signatures

    async def _connection(self, connection: socket.socket, address: str) -> None:
        peer: Peer | None = None
        try:
            peer = await self._accepted(connection)
            seconds = self._limits.head_seconds
            while await self._request(peer, seconds, address):
                seconds = self._limits.idle_seconds
                peer.http.start_next_cycle()
        except ConnectionResetError:
            pass  # it has left
        except (OSError, h11.ProtocolError) as error:  # a timeout is an OSError
            self._log(f"{address}: {type(error).__name__} {error}")
        finally:
            if peer:
                await peer.close()
            connection.close()
            self._open[address] -= 1
            self._open += Counter()  # forgets addresses without connections

    async def _accepted(self, connection: socket.socket) -> Peer:
        loop, tls, seconds = asyncio.get_running_loop(), self._own_tls, self._limits.handshake_seconds
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader(CHUNK)
        protocol = asyncio.StreamReaderProtocol(reader)
        timeouts = {"ssl_handshake_timeout": seconds} if tls else {}
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls, **timeouts)
        return Peer(reader, asyncio.StreamWriter(transport, protocol, reader, loop), h11.SERVER, self._limits)

    async def _request(self, peer: Peer, seconds: float, address: str) -> bool:
        """Pass one request on; whether the connection may bring another."""
        try:
            async with asyncio.timeout(seconds):
                request = await peer.receive(seconds)
            if not isinstance(request, h11.Request):
                return False  # it has left
            fault = self._signatures.fault(dict(request.headers)) if self._signatures else ""
            head = checked_request(request, self._limits.stranger_bytes if fault else self._limits.body_bytes)
            if fault:
                raise Refused(SHOW if request.target in FIRST_CALLS else LEAVE, fault)
            await self._pass(peer, head)
            return peer.http.our_state is h11.DONE and peer.http.their_state is h11.DONE
        except h11.RemoteProtocolError as error:
            await self._refuse(peer, Refused(error.error_status_hint, str(error)), address)
        except Refused as refused:
            await self._refuse(peer, refused, address)
        return False

    async def _pass(self, peer: Peer, head: h11.Request) -> None:
        """Send the request to the SuperLink on a connection of its own, and its answer back."""
        limits = self._limits
        try:
            stream = await asyncio.open_connection(*self._superlink, limit=CHUNK, ssl=self._superlink_tls)
        except OSError as error:
            raise Refused(502, f"the SuperLink cannot be reached: {error}") from None
        superlink = Peer(*stream, h11.CLIENT, limits)
        try:
            length = int(dict(head.headers)[b"content-length"])
            async with asyncio.timeout(limits.idle_seconds + length / limits.body_rate):
                await superlink.send(head)
                while isinstance(event := await peer.receive(limits.idle_seconds), h11.Data):
                    await superlink.send(h11.Data(event.data))
                if not isinstance(event, h11.EndOfMessage):
                    return
                await superlink.send(h11.EndOfMessage())
            try:
                answer = await superlink.receive(limits.answer_seconds)
            except (OSError, h11.RemoteProtocolError) as error:
                raise Refused(502, f"the SuperLink gave no answer: {type(error).__name__} {error}") from None
            if not isinstance(answer, h11.Response):
                raise Refused(502, "the SuperLink gave no answer")
            headers = [(name, value) for name, value in answer.headers if name in ANSWER_HEADERS]
            await peer.send(h11.Response(status_code=answer.status_code, headers=headers))
            while isinstance(event := await superlink.receive(limits.answer_seconds), h11.Data):
                await peer.send(h11.Data(event.data))
            await peer.send(h11.EndOfMessage())
        finally:
            await superlink.close()

    async def _refuse(self, peer: Peer, refused: Refused, address: str) -> None:
        self._log(f"{address}: {refused.status}, {refused}")
        if peer.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return  # an answer has begun
        text = b"refused\n"
        if refused.status in (LEAVE, SHOW):  # in the form of Flower's own errors
            text = json.dumps({"code": NOT_ADMITTED, "detail": f"{refused}."}).encode()
        headers = [(b"content-length", b"%d" % len(text)), (b"connection", b"close")]
        await peer.send(h11.Response(status_code=refused.status, headers=headers))
        await peer.send(h11.Data(text))
        await peer.send(h11.EndOfMessage())
        with suppress(TimeoutError, h11.RemoteProtocolError):  # closed with bytes unread, the answer could be lost
            async with asyncio.timeout(self._limits.close_seconds):
                while peer.http.their_state is h11.SEND_BODY:
                    await peer.receive(self._limits.close_seconds)

    def _log(self, text: str) -> None:
        self._logged += 1
        if self._logged <= LOGGED:
            line = "".join(letter if letter.isprintable() else " " for letter in text)
            LOG.info("%s%s", line[:300], " (nothing more is written down)" if self._logged == LOGGED else "")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; `::` takes IPv4 as well."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=256, dualstack_ipv6=both)


async def run(proxy: Proxy, listener: socket.socket, group: int | None, keys: KeyFiles | None = None) -> None:
    """Serve. With a SuperLink's process `group`, until standard input ends; then that group is ended, too.

    The other end of the pipe is our parent's: a parent that is killed leaves no SuperLink behind.
    """
    serving = asyncio.create_task(proxy.serve(listener))
    following = asyncio.create_task(proxy.follow(keys)) if keys else None
    if group is not None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving
    if following:
        following.cancel()
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m fedsparsify.federation.flower.proxy`: what `serve` starts."""
    parser = argparse.ArgumentParser(description="Pass the calls of nodes to a SuperLink, and nothing else.")
    parser.add_argument("--host", required=True, help="address to listen at")
    parser.add_argument("--port", required=True, type=int, help="port to listen at")
    parser.add_argument("--superlink-port", required=True, type=int, help="port of the SuperLink at 127.0.0.1")
    parser.add_argument("--superlink-ca", type=Path, help="certificate of the CA that vouches for the SuperLink")
    parser.add_argument("--keys", type=Path, help="folder with server.crt, server.key and the nodes' *.pub")
    parser.add_argument("--body-bytes", type=int, default=Limits.body_bytes, help="longest body of a node's request")
    parser.add_argument(
        "--end-group", type=int, metavar="PID", help="end when standard input ends, and this process group with it"
    )
    told = parser.parse_args(arguments)
    basicConfig(level=INFO, format="%(asctime)s %(message)s")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * Limits.connections  # two a connection, and some to spare
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    keys = KeyFiles(told.keys) if told.keys else None
    proxy = Proxy(
        ("127.0.0.1", told.superlink_port),
        Limits(body_bytes=told.body_bytes),
        keys.tls if keys else None,
        ssl.create_default_context(cafile=told.superlink_ca) if told.superlink_ca else None,
        keys.signatures if keys else None,
    )
    with listen(told.host, told.port) as listener:
        asyncio.run(run(proxy, listener, told.end_group, keys))


if __name__ == "__main__":
    main()
