"""A caller from outside that holds `ca.crt` and nothing else, and what it may try against a server."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

import httpx
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

TRICKS = [
    "/v1/fleet/../control/list-nodes",
    "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/..%2fcontrol/list-nodes",
    "/v1/fleet/%2e%2e%2fcontrol%2flist-nodes",
    "/v1/fleet/..\\control\\list-nodes",
    "//v1/control/list-nodes",
    "/v1//control/list-nodes",
    "/v1/fleet//../control/list-nodes",
    "/v1/fleet/.;/../control/list-nodes",
    "/v1/fleet/pull-messages/../../control/list-nodes",
    "/v1/fleet/pull-messages?/../../control/list-nodes",
    "/v1/fleet/pull-messages#/../../control/list-nodes",
    "/v1/control/list-nodes?/v1/fleet/pull-messages",
    "/v1/control/list-nodes;/v1/fleet/pull-messages",
    "/%76%31/control/list-nodes",
    "/V1/CONTROL/list-nodes",
    "https://127.0.0.1/v1/control/list-nodes",
    "http://127.0.0.1/v1/fleet/pull-messages",
    "127.0.0.1:80",
    "*",
    "/v1/fleet/",
    "/v1/fleet",
    "/",
]


class Outside:
    """Speaks to `address` over TLS with the CA's certificate, or in the clear without one."""

    def __init__(self, address: str, ca: Path | None) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.tls = ssl.create_default_context(cafile=str(ca)) if ca else None
        self.url = f"http{'s' if ca else ''}://{address}"

    def calls(self) -> dict[str, int]:
        """The answer's status for each call that Flower's server knows, nodes' own calls apart."""
        found = {}
        _, public = generate_key_pairs()
        with httpx.Client(verify=self.tls or False, trust_env=False) as client:
            for (method, path), kind in PROTOBUF_REQUEST_TYPES.items():
                if not path.startswith("/v1/fleet/"):
                    message = kind()
                    if path == "/v1/control/register-node":
                        message.public_key = public_key_to_bytes(public)
                    body, headers = message.SerializeToString(), {"content-type": PROTOBUF_MEDIA_TYPE}
                    found[path] = client.request(method, self.url + path, content=body, headers=headers).status_code
            for path in ("/health", "/docs", "/openapi.json", "/v1/responses", "/v1/fleet/pull-messages"):
                found[f"GET {path}"] = client.get(self.url + path).status_code
        return found

    def fleet_calls(self, body: bytes = b"") -> dict[str, int]:
        """The answer's status for each call of a node, signed with a key that nobody registered."""
        interceptor = NodeAuthHttpInterceptor(*generate_key_pairs())
        found = {}
        with httpx.Client(verify=self.tls or False, trust_env=False) as client:
            for method, path in PROTOBUF_REQUEST_TYPES:
                if path.startswith("/v1/fleet/"):
                    headers = {"content-type": PROTOBUF_MEDIA_TYPE}
                    request = client.build_request(method, self.url + path, content=body, headers=headers)
                    context = ProtobufRequestContext("", PullMessagesRequest(), request)
                    found[path] = interceptor.intercept(
                        context, lambda context: client.send(context.request)
                    ).status_code
        return found

    def says(self, request: bytes, wait: float = 10) -> bytes:
        """All that comes back for these bytes, until the other side closes."""
        raw = socket.create_connection((self.host, self.port), wait)
        with self.tls.wrap_socket(raw, server_hostname=self.host) if self.tls else raw as stream:
            stream.sendall(request)
            answer = b""
            try:
                while chunk := stream.recv(65536):
                    answer += chunk
            except (ConnectionResetError, ssl.SSLEOFError):
                pass
            return answer

    def status(self, request: bytes) -> list[int]:
        """The status of each answer to these bytes."""
        return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", self.says(request))]

    def tricks(self) -> dict[str, list[int]]:
        """The answers to paths that one parser may read otherwise than another."""
        head = "Host: a\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        return {path: self.status(f"POST {path} HTTP/1.1\r\n{head}".encode()) for path in TRICKS}
