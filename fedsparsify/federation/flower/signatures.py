"""Whether a registered node signed a request: Flower's nodes sign the time, and send their public key beside it."""

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

    def hold(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the headers have the time of now, signed by one of the nodes."""
        try:
            key = self._keys.get(b64decode(headers[b"flwr-public-key"], validate=True))
            if not isinstance(key, ec.EllipticCurvePublicKey):
                return False
            time = headers[b"flwr-timestamp"]
            signed = datetime.datetime.fromisoformat(time.decode("ascii"))
            age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
            key.verify(b64decode(headers[b"flwr-signature"], validate=True), time, ec.ECDSA(SHA256()))
        except (KeyError, ValueError, TypeError, InvalidSignature):
            return False
        return -AHEAD < age < SECONDS
