"""Which requests the proxy passes on, and in what form.

In: a node's request as h11 parsed it. Out: a new request for the SuperLink, made of checked parts; or `Refused`.
"""

from __future__ import annotations

import re

import h11

PATH = re.compile(rb"/v1/fleet/[a-z-]{1,64}")
REQUEST_HEADERS = (
    *(b"content-type", b"accept", b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"),
    *(b"flwr-package-name", b"flwr-package-version", b"flwr-component-name"),
)
REFUSED_HEADERS = (b"transfer-encoding", b"upgrade", b"expect")  # nodes send none of them


class Refused(Exception):
    """A request that is answered by the proxy itself."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def checked_request(request: h11.Request, most_bytes: int) -> h11.Request:
    """The request that the SuperLink is sent for this one, whose body may have `most_bytes`."""
    found = dict(request.headers)
    if request.method != b"POST" or not PATH.fullmatch(request.target):
        raise Refused(404, "no call of a node")
    if request.http_version != b"1.1":
        raise Refused(505, "not HTTP/1.1")
    for name in REFUSED_HEADERS:
        if name in found:
            raise Refused(411 if name == b"transfer-encoding" else 400, f"header {name.decode()}")
    if len(found) != len(request.headers):
        raise Refused(400, "a header twice")
    if b"content-length" not in found:
        raise Refused(411, "no length")
    if (length := int(found[b"content-length"])) > most_bytes:
        raise Refused(413, f"{length:,} bytes, where {most_bytes:,} are allowed")
    ours = [(b"host", b"superlink"), (b"connection", b"close"), (b"content-length", b"%d" % length)]
    passed = [(name, found[name]) for name in REQUEST_HEADERS if name in found]
    return h11.Request(method=b"POST", target=request.target, headers=ours + passed)
