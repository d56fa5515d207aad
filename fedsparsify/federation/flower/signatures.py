"""Whether a registered node signed a request: Flower's nodes sign the time, and send their public key beside it.

In: the headers of a request. Out: what is wrong with its signature.
"""

from __future__ import annotations

import datetime
from base64 import b64decode
from collections.abc import Collection, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from .keys import node_keys

SECONDS = 305.0  # how old a signature may be: as Flower has it
AHEAD = 5.0  # seconds by which a node's clock may be fast


def public_keys(folder: Path) -> set[bytes]:
    """The keys of a folder that may join, as nodes send them."""
    return {key.public for key in node_keys(folder)}


class Signatures:
    """The signatures of the nodes that have these public keys."""

    def __init__(self, keys: Collection[bytes]) -> None:
        self._keys = {key: load_pem_public_key(key) for key in keys}

    def fault(self, headers: Mapping[bytes, bytes]) -> str:
        """What is wrong with a request's signature; nothing where one of the nodes signed the time of now."""
        try:
            public = b64decode(headers[b"flwr-public-key"], validate=True)
            time, signature = headers[b"flwr-timestamp"], b64decode(headers[b"flwr-signature"], validate=True)
        except (KeyError, ValueError):
            return "the request is not signed by a node's key"
        key = self._keys.get(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return "this key is not registered with the server"
        try:
            key.verify(signature, time, ec.ECDSA(SHA256()))
            signed = datetime.datetime.fromisoformat(time.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
        except (ValueError, TypeError, InvalidSignature):
            return "the signature is not by the key that the request names"
        if not -AHEAD < age < SECONDS:
            return f"the node's clock differs from the server's by {abs(age):.0f} s"
        return ""
