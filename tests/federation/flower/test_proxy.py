"""The proxy in front of a SuperLink: what passes, in what form, and what it takes of the machine."""

from __future__ import annotations

import asyncio
import datetime
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import contextmanager
from functools import partial

import pytest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from outside import TRICKS, Outside

from fedsparsify.errors import ConfigError
from fedsparsify.federation.flower.keys import make_keys
from fedsparsify.federation.flower.preflight import signed_headers
from fedsparsify.federation.flower.processes import free_port
from fedsparsify.federation.flower.proxy import Proxy, listen
from fedsparsify.federation.flower.proxy_peer import Limits
from fedsparsify.federation.flower.signatures import Signatures, public_keys

FLEET = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\n"


class FakeSuperLink:
    """Keeps what it is sent; answers each request with `answer`."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.arrived = threading.Event()  # the first bytes of a body
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nserver: s\r\nset-cookie: c\r\n\r\nok"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.read(1) if length else b""
        self.arrived.set()
        try:
            body += await reader.readexactly(length - len(body))
            self.requests.append(head + body)
            writer.write(self.answer)
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # the caller left
        finally:
            writer.close()


@contextmanager
def proxied(limits: Limits | None = None, **more):
    """A fake SuperLink and a proxy before it, in a thread."""
    superlink, ready, loop = FakeSuperLink(), threading.Event(), asyncio.new_event_loop()
    listener = listen("127.0.0.1", 0)
    stop = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(superlink.take, "127.0.0.1", 0, limit=1 << 16)
        proxy = Proxy(("127.0.0.1", server.sockets[0].getsockname()[1]), limits or Limits(), **more)
        task = asyncio.create_task(proxy.serve(listener))
        ready.set()
        await stop.wait()
        task.cancel()
        server.close()

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        yield Outside(f"127.0.0.1:{listener.getsockname()[1]}", None), superlink
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        listener.close()


def signature(private, public, age: float = 0) -> dict[bytes, bytes]:
    """The headers of a node's request."""
    now = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat().encode()
    key, signed = b64encode(public_key_to_bytes(public)), b64encode(sign_message(private, now))
    return {b"flwr-public-key": key, b"flwr-timestamp": now, b"flwr-signature": signed}


def lines(headers: dict[bytes, bytes]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in headers.items())


def test_a_request_is_written_anew():
    with proxied() as (outside, superlink):
        odd = b"X-Forwarded-For: 1\r\nCookie: a\r\nflwr-task-token: t\r\nACCEPT: x\r\nConnection: close, accept\r\n"
        answer = outside.says(FLEET + odd + b"Content-Length: 0003\r\n\r\nabc")
        assert superlink.requests == [
            b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: superlink\r\nconnection: close\r\ncontent-length: 3\r\n"
            b"accept: x\r\n\r\nabc"
        ]
        assert answer == b"HTTP/1.1 200 \r\ncontent-length: 2\r\nConnection: close\r\n\r\nok"


def test_a_connection_brings_one_request_after_another():
    with proxied() as (outside, superlink):
        one = FLEET + b"Content-Length: 0\r\n\r\n"
        last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert outside.status(one + one + last) == [200, 200, 200] and len(superlink.requests) == 3
        other = last.replace(b"fleet/pull-messages", b"control/list-nodes")
        assert outside.status(one + other + one) == [200, 404] and len(superlink.requests) == 4


def test_other_paths_and_methods_do_not_pass():
    with proxied() as (outside, superlink):
        assert set(map(tuple, outside.tricks().values())) == {(404,)} and len(outside.tricks()) == len(TRICKS)
        for method in ("GET", "PUT", "HEAD", "OPTIONS", "CONNECT", "TRACE", "post", "PRI"):
            request = f"{method} /v1/fleet/pull-messages HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
            assert outside.status(request.encode()) == [404], method
        assert superlink.requests == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"Transfer-Encoding: chunked\r\n", 411),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 501),
        (b"Transfer-Encoding: \x0bchunked\r\n", 400),
        (b"Transfer-Encoding : chunked\r\nContent-Length: 3\r\n", 400),
        (b"Content-Length: 3\r\nContent-Length: 4\r\n", 400),
        (b"Content-Length: 3, 4\r\n", 400),
        (b"Content-Length: +3\r\n", 400),
        (b"Content-Length: -3\r\n", 400),
        (b"Content-Length: 0x3\r\n", 400),
        (b"Content-Length: " + b"9" * 9000 + b"\r\n", 400),
        (b"Content-Length: 3\r\n Transfer-Encoding: chunked\r\nflwr-signature: a\r\nflwr-signature: b\r\n", 400),
        (b"Content-Length: 3\r\nAccept: a\r\nAccept: b\r\n", 400),
        (b"Content-Length: 3\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n", 400),
        (b"Content-Length: 3\r\nExpect: 100-continue\r\n", 400),
        (b"Content-Length: 3\r\nA\x00: b\r\n", 400),
        (b"Content-Length: 3\r\nHost: b\r\n", 400),
        (b"", 411),
        (b"A: " + b"b" * 70_000 + b"\r\n", 431),
    ],
)
def test_what_two_parsers_could_read_in_two_ways_is_refused(head, status):
    with proxied() as (outside, superlink):
        hidden = b"\r\nabcPOST /v1/control/list-nodes HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        assert outside.status(FLEET + head + hidden) == [status]
        assert superlink.requests == []


def test_other_protocols_are_refused():
    with proxied() as (outside, superlink):
        assert outside.status(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)) == [404]
        assert outside.status(FLEET.replace(b"1.1", b"1.0") + b"Content-Length: 0\r\n\r\n") == [505]
        assert outside.status(b"\x16\x03\x01\x02\x00" * 99) == [400]  # a TLS handshake, in the clear
        assert superlink.requests == []


def test_bodies_stream_in_both_directions():
    half = bytes(8 << 20)
    with proxied() as (outside, superlink):
        superlink.answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * len(half)) + half + half
        with socket.create_connection((outside.host, outside.port), 20) as stream:
            stream.sendall(FLEET + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (2 * len(half)))
            stream.sendall(half)
            assert superlink.arrived.wait(20)  # before the rest has left here
            stream.sendall(half)
            taken = 0
            while piece := stream.recv(1 << 20):
                taken += len(piece)
        assert taken > 2 * len(half) and len(superlink.requests[0]) > 2 * len(half)


def test_an_answer_without_a_length_passes():
    with proxied() as (outside, superlink):
        superlink.answer = b"HTTP/1.1 403 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        answer = outside.says(FLEET + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403") and answer.endswith(b"\r\n3\r\nabc\r\n0\r\n\r\n")


def test_a_superlink_that_is_gone_or_mute():
    with proxied() as (outside, superlink):
        superlink.answer = b""
        assert outside.status(FLEET + b"Content-Length: 0\r\n\r\n") == [502]
        superlink.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab"
        assert outside.says(FLEET + b"Content-Length: 0\r\n\r\n").endswith(b"ab")  # cut off, and closed


def test_slow_and_silent_callers_are_let_go():
    limits = Limits(head_seconds=0.2, idle_seconds=0.2)
    with proxied(limits) as (outside, superlink):
        for words in (b"", FLEET, FLEET + b"Content-Length: 3\r\n\r\na"):
            assert outside.says(words) == b""
        with socket.create_connection((outside.host, outside.port), 20) as stream:
            try:  # a byte now and then does not help
                for byte in FLEET * 9:
                    stream.sendall(bytes([byte]))
                    time.sleep(0.05)
                alive = True
            except OSError:
                alive = False
        assert not alive and superlink.requests == []


def test_connections_are_counted():
    with proxied(Limits(address_connections=2, head_seconds=30)) as (outside, _):
        connect = partial(socket.create_connection, (outside.host, outside.port), 20)
        with connect() as one, connect() as two:
            one.sendall(FLEET)
            two.sendall(FLEET)
            assert outside.says(b"") == b""  # closed without a word
            one.sendall(b"Connection: close\r\nContent-Length: 0\r\n\r\n")
            while one.recv(999):
                pass
            while not (answer := outside.says(FLEET + b"Connection: close\r\nContent-Length: 0\r\n\r\n")):
                pass
            assert answer.startswith(b"HTTP/1.1 200")


def test_registered_nodes_pass_and_others_are_told_why():
    mine, stranger = generate_key_pairs(), generate_key_pairs()
    limits = Limits(body_bytes=2000, stranger_bytes=1000)
    with proxied(limits, signatures=Signatures([public_key_to_bytes(mine[1])])) as (outside, superlink):

        def status(headers: dict[bytes, bytes], size: int) -> list[int]:
            head = FLEET + lines(headers) + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size
            return outside.status(head + bytes(size))

        assert status({}, 1000) == [401] and status({}, 1001) == [413]
        assert status(signature(*stranger), 1000) == [401] and status(signature(*stranger), 1001) == [413]
        first = FLEET.replace(b"pull-messages", b"activate-node") + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
        assert outside.status(first) == [412]  # which a SuperNode shows
        assert superlink.requests == []
        assert status(signature(*mine), 2000) == [200] and status(signature(*mine), 2001) == [413]
        assert len(superlink.requests) == 1
        one = FLEET + lines(signature(*stranger)) + b"Content-Length: 0\r\n\r\n"
        answer = outside.says(one + one)  # a stranger's connection is not kept
        assert answer.count(b"HTTP/1.1 401") == 1
        assert json.loads(answer.rpartition(b"\r\n")[2])["code"] == 2004 and b"this key is not registered" in answer


def test_signatures():
    (private, public), other = generate_key_pairs(), generate_key_pairs()
    signatures, good = Signatures([public_key_to_bytes(public)]), signature(private, public)
    assert signatures.fault(good) == ""
    for headers, reason in (
        ({}, "is not signed"),
        (signature(*other), "this key is not registered"),
        (signature(other[0], public), "not by the key"),
        (signature(private, public, age=400), "clock differs from the server's by 400 s"),
        (signature(private, public, age=-60), "clock differs from the server's by 60 s"),
    ):
        assert reason in signatures.fault(headers)
    for name in good:
        for wrong in (b"", b"\xff", b"a", b"2026-01-01"):
            assert signatures.fault(good | {name: wrong})


def test_a_nodes_own_headers_are_good_signatures(tmp_path):
    make_keys(tmp_path / "keys", ["a"], 2)
    signatures = Signatures(public_keys(tmp_path / "keys"))
    made = signed_headers(tmp_path / "keys/node-1")
    assert signatures.fault({name.encode(): value.encode() for name, value in made.items()}) == ""
    for path in (tmp_path / "none", tmp_path / "keys/ca.crt"):
        with pytest.raises(ConfigError, match="is not a node's private key"):
            signed_headers(path)


def test_public_keys_are_read_as_nodes_send_them(tmp_path):
    make_keys(tmp_path / "keys", ["a"], 2)
    assert len(public_keys(tmp_path / "keys")) == 2
    assert all(key.startswith(b"-----BEGIN PUBLIC KEY") for key in public_keys(tmp_path / "keys"))
    (tmp_path / "keys/x.pub").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"x\.pub is not a node's public key"):
        public_keys(tmp_path / "keys")


def test_a_killed_server_leaves_neither_proxy_nor_superlink():
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as superlink:
        command = [sys.executable, "-m", "fedsparsify.federation.flower.proxy", "--host", "127.0.0.1"]
        command += ["--port", str(free_port()), "--superlink-port", "1", "--end-group", str(superlink.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            process.stdin.close()  # as when the parent is killed
            assert process.wait(60) == 0
        assert superlink.wait(60) == -signal.SIGTERM
